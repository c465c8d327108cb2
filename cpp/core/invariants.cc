// What must hold between any two calls. Everything is counted anew from the records; nothing is taken from the counters
// that are being verified.
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/check.h"

namespace kvfix {
namespace {

using Counts = std::vector<std::uint32_t>;

}  // namespace

// ------------------------------------------------------------------------------------------------ one window

void WindowPool::check_invariants(std::span<const std::uint32_t> owners) const {
    for (BlockIndex block = 0; block < store.size(); ++block) {
        check(store[block].owners == owners[block], "a block's owner count differs from the sequences that hold it");
    }
    check_slots();
    check_queues();
    check_tree();
}

// Every slot is free once or belongs to one block; every record is free or has a slot.
void WindowPool::check_slots() const {
    std::array<std::uint64_t, kTiers> flying{0, 0};
    std::array<Counts, kTiers> users{Counts(store.slots(kPrimary)), Counts(store.slots(kHost))};
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
        for (const SlotIndex slot : store.free_slots(tier)) {
            ++users[tier].at(slot);
        }
        for (BlockIndex block = 0; block < store.size(); ++block) {
            const Block& record = store[block];
            flying[tier] += record.in_flight(tier) ? 1 : 0;
            if (record.has(tier)) {
                ++users[tier].at(record.slot[tier]);
            } else {
                check(record.pins[tier] == 0 && record.locks[tier] == 0 && !record.in_flight(tier),
                      "a block is pinned, locked or in flight in a tier where it has no slot");
            }
        }
        check(std::ranges::all_of(users[tier], [](std::uint32_t n) { return n == 1; }),
              "a slot is lost, or used twice");
        check(flying[tier] == in_flight_[tier], "the count of slots in flight is wrong");
    }
    Counts listed(store.size());
    for (const BlockIndex block : store.free_records()) {
        ++listed[block];
    }
    for (BlockIndex block = 0; block < store.size(); ++block) {
        const Block& record = store[block];
        const bool live = record.has(kPrimary) || record.has(kHost);
        check(listed[block] == (live ? 0U : 1U), "a record is lost, or both live and free");
        check(live || (!record.in_tree && record.owners == 0 && !record.has_extras),
              "a free record still says something");
    }
}

// A block queues where it is cached, and only there, with its own priority.
void WindowPool::check_queues() const {
    const auto collect = [this](const EvictionQueue& queue) {
        Counts in(store.size());
        std::uint32_t size = 0;
        queue.for_each([&](BlockIndex block, Priority priority) {
            check(in[block]++ == 0, "a block stands in a queue twice");
            check(priority == store[block].priority, "a block queues under a priority that is not its own");
            ++size;
        });
        check(size == queue.size(), "a queue's size is wrong");
        return in;
    };
    const Counts primary = collect(primary_queue_);
    for (BlockIndex block = 0; block < store.size(); ++block) {
        const Block& record = store[block];
        const bool cached = record.in_tree && record.has(kPrimary) && !record.held_primary();
        check(primary[block] == (cached ? 1U : 0U), "the primary queue does not hold exactly the cached blocks");
        check(record.in_tree || !record.has(kPrimary) || record.held_primary(),
              "a private block keeps a primary slot for nobody");
        check(!record.undelivered || !record.in_tree, "an undelivered block can be found");
    }
    if (config.blocks_host == 0) {
        return;
    }
    const Counts redundant = collect(host_redundant_queue_);
    const Counts only = collect(host_only_queue_);
    for (BlockIndex block = 0; block < store.size(); ++block) {
        const Block& record = store[block];
        const bool cached = record.in_tree && record.has(kHost) && !record.held_host();
        check(redundant[block] == (cached && record.has(kPrimary) ? 1U : 0U),
              "the queue of redundant host copies is wrong");
        check(only[block] == (cached && !record.has(kPrimary) ? 1U : 0U), "the queue of blocks only in host is wrong");
        check(record.in_tree || !record.has(kHost) || record.held_host(),
              "a private block keeps a host slot for nobody");
    }
}

void WindowPool::check_tree() const {
    std::vector<BlockIndex> children;
    Counts seen(store.size());
    for (BlockIndex block = 0; block < store.size(); ++block) {
        const Block& record = store[block];
        children.clear();
        tree.collect_direct_children(block, children);
        std::uint32_t in_primary = 0;
        for (const BlockIndex child : children) {
            check(store[child].in_tree && store[child].parent == block, "a child does not know its parent");
            in_primary += store[child].has(kPrimary) ? 1 : 0;
            ++seen[child];
        }
        check(in_primary == record.children_primary, "the count of children in primary is wrong");
        check(children.empty() || (record.in_tree && record.num_tokens == store.tokens_per_block()),
              "a private or incomplete block has children");
    }
    tree.check_roots(seen);
    for (BlockIndex block = 0; block < store.size(); ++block) {
        const Block& record = store[block];
        check(seen[block] == (record.in_tree ? 1U : 0U), "a tree block is not a child of exactly one parent");
        if (record.in_tree) {
            check(record.num_tokens > 0 && record.num_tokens <= store.tokens_per_block(),
                  "a tree block has no tokens, or too many");
            tree.check_indexed(block);
        }
    }
}

// ------------------------------------------------------------------------------------------------ the manager

void BlockManager::check_invariants() const {
    const ManagerGuard guard(mutex_);
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        Counts owners(pools_[window]->store.size());
        for (const Sequence* sequence : sequences_.ordered()) {
            sequence->windows[window].for_each([&](BlockIndex block) { ++owners.at(block); });
        }
        pools_[window]->check_invariants(owners);
    }
    check_sequences();
    check_transfers();
}

void BlockManager::check_sequences() const {
    for (const Sequence* sequence : sequences_.ordered()) {
        check(sequence->known() <= sequence->length && sequence->prompt_length() <= sequence->length,
              "a sequence's lengths disagree");
        for (std::size_t window = 0; window < pools_.size(); ++window) {
            const HeldBlocks& held = sequence->windows[window];
            check(held.size() == ceil_div(sequence->length, config_.tokens_per_block),
                  "a sequence has too few or too many blocks");
            for (std::size_t position = 0; position < held.size(); ++position) {
                for (std::uint32_t beam = 0; beam < sequence->beam_width(); ++beam) {
                    const BlockIndex block = held.at(beam, position);
                    check((block == kNone) == (position < held.left),
                          "a block that left its window is held, or the reverse");
                    check(block == kNone || pools_[window]->store[block].has(kPrimary),
                          "a sequence holds a block without a primary slot");
                }
            }
        }
    }
}

// Slots in flight and locks are those of the transfers that have not ended, no more and no fewer.
void BlockManager::check_transfers() const {
    std::map<std::pair<std::size_t, BlockIndex>, std::array<std::uint32_t, kTiers>> flights;
    std::map<std::pair<std::size_t, BlockIndex>, std::array<std::uint32_t, kTiers>> locks;
    const auto count = [&](const Transfer& item) {
        ++flights[{item.window, item.block}][item.kind == TransferKind::offload ? kHost : kPrimary];
        if (item.kind != TransferKind::offload) {
            ++locks[{item.window, item.source}][item.kind == TransferKind::copy ? kPrimary : kHost];
        }
    };
    std::ranges::for_each(ledger_.queued(), count);
    for (const auto& [ticket, items] : ledger_.taken()) {
        std::ranges::for_each(items, count);
    }
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        for (BlockIndex block = 0; block < pools_[window]->store.size(); ++block) {
            const Block& record = pools_[window]->store[block];
            const auto flight = flights.find({window, block});
            const auto lock = locks.find({window, block});
            for (std::size_t tier = 0; tier < kTiers; ++tier) {
                const std::uint32_t flying = flight == flights.end() ? 0 : flight->second[tier];
                check(flying == (record.in_flight(tier) ? 1U : 0U),
                      "a slot is in flight without a transfer, or with two");
                check(record.locks[tier] == (lock == locks.end() ? 0 : lock->second[tier]),
                      "a slot's locks differ from its transfers");
            }
        }
    }
}

}  // namespace kvfix
