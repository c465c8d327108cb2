// Every check counts anew from the records. None trusts the counters that it verifies.
#include "core/invariants.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/digest.h"

namespace kvfix {
namespace {

using Counts = std::vector<std::uint32_t>;

// ------------------------------------------------------------------------------------------------ one window

// Every slot is free once or belongs to one block; every record is free or has a slot.
void check_slots(const Window& window) {
    const BlockStore& blocks = window.blocks;
    std::array<std::uint64_t, kTiers> flying{0, 0};
    std::array<Counts, kTiers> users{Counts(blocks.slots(kPrimary)), Counts(blocks.slots(kHost))};
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
        for (const SlotIndex slot : blocks.free_slots(tier)) {
            ++users[tier].at(number(slot));
        }
        for (const BlockIndex block : blocks.all()) {
            const Block& record = blocks[block];
            flying[tier] += record.in_flight(tier) ? 1 : 0;
            if (record.has(tier)) {
                ++users[tier].at(number(record.slot[tier]));
            } else {
                check(record.pins[tier] == 0 && record.locks[tier] == 0 && !record.in_flight(tier),
                      "a block is pinned, locked or in flight in a tier where it has no slot");
            }
        }
        check(std::ranges::all_of(users[tier], [](std::uint32_t n) { return n == 1; }),
              "a slot is lost, or used twice");
        check(flying[tier] == window.in_flight[tier], "the count of slots in flight is wrong");
    }
    Counts listed(blocks.size());
    for (const BlockIndex block : blocks.free_records()) {
        ++listed[number(block)];
    }
    for (const BlockIndex block : blocks.all()) {
        const Block& record = blocks[block];
        const bool live = record.has(kPrimary) || record.has(kHost);
        check(listed[number(block)] == (live ? 0U : 1U), "a record is lost, or both live and free");
        check(live || (!record.in_tree && record.owners == 0 && !record.has_extras),
              "a free record still says something");
    }
}

// A block stands in a queue exactly where it is cached, with its own priority.
void check_queues(const Window& window) {
    const BlockStore& blocks = window.blocks;
    const auto collect = [&](const EvictionQueue& queue) {
        Counts in(blocks.size());
        std::uint32_t size = 0;
        queue.for_each([&](BlockIndex block, Priority priority) {
            check(in[number(block)]++ == 0, "a block stands in a queue twice");
            check(priority == blocks[block].priority, "a block queues under a priority that is not its own");
            ++size;
        });
        check(size == queue.size(), "a queue's size is wrong");
        return in;
    };
    const Counts primary = collect(window.primary_queue);
    for (const BlockIndex block : blocks.all()) {
        const Block& record = blocks[block];
        const bool cached = record.in_tree && record.has(kPrimary) && !record.held_primary();
        check(primary[number(block)] == (cached ? 1U : 0U),
              "the primary queue does not hold exactly the cached blocks");
        check(record.in_tree || !record.has(kPrimary) || record.held_primary(),
              "a private block keeps a primary slot for nobody");
        check(!record.undelivered || !record.in_tree, "an undelivered block can be found");
    }
    if (!window.has_host()) {
        return;
    }
    const Counts redundant = collect(window.host_redundant_queue);
    const Counts only = collect(window.host_only_queue);
    const Counts newcomers = collect(window.host_newcomer_queue);
    for (const BlockIndex block : blocks.all()) {
        const Block& record = blocks[block];
        const bool cached = record.in_tree && record.has(kHost) && !record.held_host();
        check(redundant[number(block)] == (cached && record.has(kPrimary) ? 1U : 0U),
              "the queue of redundant host copies is wrong");
        const bool newcomer = window.newcomers && !record.asked_again;
        check(only[number(block)] == (cached && !record.has(kPrimary) && !newcomer ? 1U : 0U),
              "the queue of blocks only in host is wrong");
        check(newcomers[number(block)] == (cached && !record.has(kPrimary) && newcomer ? 1U : 0U),
              "the queue of newcomers in host is wrong");
        check(record.in_tree || !record.has(kHost) || record.held_host(),
              "a private block keeps a host slot for nobody");
    }
}

void check_tree(const Window& window) {
    const BlockStore& blocks = window.blocks;
    std::vector<BlockIndex> children;
    Counts seen(blocks.size());
    for (const BlockIndex block : blocks.all()) {
        const Block& record = blocks[block];
        children.clear();
        window.tree.collect_direct_children(block, children);
        std::uint32_t in_primary = 0;
        for (const BlockIndex child : children) {
            check(blocks[child].in_tree && blocks[child].parent == block, "a child does not know its parent");
            in_primary += blocks[child].has(kPrimary) ? 1 : 0;
            ++seen[number(child)];
        }
        check(in_primary == record.children_primary, "the count of children in primary is wrong");
        check(children.empty() || (record.in_tree && record.num_tokens == blocks.tokens_per_block()),
              "a private or incomplete block has children");
    }
    window.tree.check_roots(seen);
    for (const BlockIndex block : blocks.all()) {
        const Block& record = blocks[block];
        check(seen[number(block)] == (record.in_tree ? 1U : 0U), "a tree block is not a child of exactly one parent");
        if (record.in_tree) {
            check(record.num_tokens > 0 && record.num_tokens <= blocks.tokens_per_block(),
                  "a tree block has no tokens, or too many");
            window.tree.check_indexed(block);
        }
    }
}

void check_sequences(const State& state) {
    std::uint64_t suspended = 0;
    for (const Sequence* sequence : state.sequences.ordered()) {
        suspended += sequence->suspended ? 1 : 0;
        check(sequence->known() <= sequence->values_begin() && sequence->computed <= sequence->length,
              "a sequence's lengths disagree");
        check(sequence->hashes.size() <= sequence->known() / state.tokens_per_block(),
              "a sequence has named what is not known of it");
        for (const Window& window : state.windows) {
            const HeldBlocks& held = sequence->windows[window.index];
            check(held.size() == ceil_div(sequence->length, state.tokens_per_block()),
                  "a sequence has too few or too many blocks");
            for (std::size_t position = 0; position < held.size(); ++position) {
                for (std::uint32_t beam = 0; beam < sequence->beam_width(); ++beam) {
                    const BlockIndex block = held.at(beam, position);
                    check((block == kNone) == (position < held.left),
                          "a block that left its window is held, or the reverse");
                    check(block == kNone || sequence->suspended || window.blocks[block].has(kPrimary),
                          "a sequence holds a block without a primary slot");
                }
            }
        }
    }
    check(suspended == state.sequences_suspended, "the count of suspended sequences is wrong");
}

// Each block is kept for exactly the suspended sequences that hold it, in a tier where it has a slot.
void check_kept(const Window& window, std::span<const std::uint32_t> keepers) {
    std::uint64_t keeping = 0;
    for (const BlockIndex block : window.blocks.all()) {
        const auto kept = window.kept.find(block);
        keeping += keepers[number(block)];
        check(keepers[number(block)] == (kept == window.kept.end() ? 0 : kept->second.sequences),
              "a block is kept for more or fewer suspended sequences than hold it");
        check(kept == window.kept.end() || window.blocks[block].has(kept->second.tier),
              "a block is kept in a tier where it has no slot");
    }
    check(window.keepers.size() == keeping, "the list of who keeps blocks has too many entries, or too few");
}

// Every kept slot is kept for a sequence, and exists.
void check_kept_slots(const State& state) {
    for (const Window& window : state.windows) {
        std::uint64_t kept = 0;
        std::uint32_t chunked = 0;
        for (const Sequence* sequence : state.sequences.ordered()) {
            const HeldBlocks& held = sequence->windows[window.index];
            kept += held.kept;
            chunked += held.room != 0 ? 1 : 0;
            check((held.room != 0) == (sequence->length < sequence->prompt_length()),
                  "slots are kept for a prompt that is reserved, or one that is not goes without");
            check(held.room == 0 || !sequence->suspended, "slots are kept for a prompt that waits in host");
        }
        check(kept == window.slots_kept && chunked == window.chunked, "the counts of slots kept are wrong");
        std::uint64_t pinned = 0;
        for (const BlockIndex block : window.blocks.all()) {
            const Block& record = window.blocks[block];
            pinned += record.pins[kPrimary] != 0 || record.locks[kPrimary] != 0 ? 1 : 0;
        }
        check(kept <= window.there() + pinned, "slots are kept that are not there");
    }
}

// The slots in flight and the locks are exactly those of the transfers that have not ended.
void check_transfers(const State& state) {
    std::map<std::pair<std::size_t, BlockIndex>, std::array<std::uint32_t, kTiers>> flights;
    std::map<std::pair<std::size_t, BlockIndex>, std::array<std::uint32_t, kTiers>> locks;
    const auto count = [&](const Transfer& item) {
        ++flights[{item.window, item.block}][item.kind == TransferKind::offload ? kHost : kPrimary];
        if (item.kind != TransferKind::offload) {
            ++locks[{item.window, item.source}][item.kind == TransferKind::copy ? kPrimary : kHost];
        }
    };
    std::ranges::for_each(state.ledger.queued(), count);
    state.ledger.for_each_taken(count);
    for (const Window& window : state.windows) {
        for (const BlockIndex block : window.blocks.all()) {
            const Block& record = window.blocks[block];
            const auto flight = flights.find({window.index, block});
            const auto lock = locks.find({window.index, block});
            for (std::size_t tier = 0; tier < kTiers; ++tier) {
                const std::uint32_t flying = flight == flights.end() ? 0 : flight->second[tier];
                check(flying == (record.in_flight(tier) ? 1U : 0U),
                      "a slot is in flight without a transfer, or with two");
                const auto kept = window.kept.find(block);
                const std::uint32_t keeping = kept != window.kept.end() && kept->second.tier == tier ? 1 : 0;
                check(record.locks[tier] == keeping + (lock == locks.end() ? 0 : lock->second[tier]),
                      "a slot's locks differ from its transfers and suspended sequences");
            }
        }
    }
}

// If no change of a record was noted, the digest still counts it as it is.
void check_digests(const Window& window) {
    const std::vector<std::uint64_t>& members = window.block_digests.members;
    for (const BlockIndex block : blocks_up_to(static_cast<std::uint32_t>(members.size()))) {
        check(window.blocks[block].changed || members[number(block)] == digest_of_block(window, block),
              "a block changed and the digest was not told");
    }
}

}  // namespace

void check_window_invariants(const Window& window, std::span<const std::uint32_t> owners) {
    for (const BlockIndex block : window.blocks.all()) {
        check(window.blocks[block].owners == owners[number(block)],
              "a block's owner count differs from the sequences that hold it");
    }
    check_slots(window);
    check_queues(window);
    check_tree(window);
    check_digests(window);
}

void check_invariants(const State& state) {
    for (const Window& window : state.windows) {
        Counts owners(window.blocks.size());
        Counts keepers(window.blocks.size());
        for (const Sequence* sequence : state.sequences.ordered()) {
            Counts& holders = sequence->suspended ? keepers : owners;
            sequence->windows[window.index].for_each([&](BlockIndex block) { ++holders.at(number(block)); });
        }
        check_window_invariants(window, owners);
        check_kept(window, keepers);
    }
    check_sequences(state);
    check_kept_slots(state);
    check_transfers(state);
}

}  // namespace kvfix
