#include "core/offload.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/errors.h"
#include "core/evict.h"
#include "core/review.h"
#include "core/transfer.h"

namespace kvfix::offload {
namespace {

constexpr std::array<std::size_t, kTiers> kBothTiers{kPrimary, kHost};

// Returns each readable block once. In `blocks`, those that cannot be read become kNone, and with `stop_on_miss` also
// those behind a miss.
std::vector<BlockIndex> distinct_hits(const Window& window, std::vector<BlockIndex>& blocks, bool stop_on_miss) {
    std::vector<BlockIndex> hits;
    std::set<BlockIndex> seen;
    bool missed = false;
    for (BlockIndex& block : blocks) {
        const bool hit = block != kNone && (window.blocks[block].settled(kPrimary) || window.blocks[block].has(kHost));
        missed = missed || !hit;
        if (!hit || (missed && stop_on_miss)) {
            block = kNone;
        } else if (seen.insert(block).second) {
            hits.push_back(block);
        }
    }
    return hits;
}

void check_room(const Window& window, const std::vector<BlockIndex>& hits) {
    std::uint64_t needed = 0;
    std::uint64_t free = window.blocks.slots_free(kHost);
    free += std::uint64_t{window.host_redundant_queue.size()} + window.host_only_queue.size();
    for (const BlockIndex block : hits) {
        if (!window.blocks[block].has(kHost)) {
            ++needed;
        } else if (window.host_redundant_queue.contains(block) || window.host_only_queue.contains(block)) {
            --free;
        }
    }
    if (needed > free) {
        throw OutOfBlocks(needed, free, window.config.window_size, Tier::host);
    }
}

// Keeps eviction from the block while room is made for the others.
void lock(State& state, Window& window, BlockIndex block, bool locked) {
    Block& record = window.blocks[block];
    for (const std::size_t tier : kBothTiers) {
        if (record.has(tier)) {
            record.locks[tier] += locked ? 1U : ~0U;
        }
    }
    review(state, window, block);
}

}  // namespace

std::vector<std::optional<BlockId>> by_hash(State& state, const pin::HashLookup& lookup) {
    Window& window = window_of(state, lookup.window_size);
    std::vector<BlockIndex> blocks = pin::find(state, window, lookup);
    const std::vector<BlockIndex> hits = distinct_hits(window, blocks, lookup.stop_on_miss);
    check_room(window, hits);
    for (const BlockIndex block : hits) {
        lock(state, window, block, true);
    }
    for (const BlockIndex block : hits) {
        if (window.blocks[block].has(kHost)) {
            continue;
        }
        const SlotIndex slot = evict::take_host_slot(state, window);
        if (!window.blocks[block].in_tree) {  // it was dropped with an ancestor, to make room
            window.blocks.give_slot(kHost, slot);
            continue;
        }
        transfer::copy_to_host(state, window, block, slot);
        ++window.blocks[block].locks[kHost];
    }
    for (const BlockIndex block : hits) {
        if (!window.blocks[block].in_tree) {
            std::ranges::replace(blocks, block, BlockIndex{kNone});
        }
        lock(state, window, block, false);
    }
    std::vector<std::optional<BlockId>> out;
    for (const BlockIndex block : blocks) {
        out.push_back(block == kNone ? std::nullopt : std::optional(id_of(window, block)));
    }
    return out;
}

}  // namespace kvfix::offload
