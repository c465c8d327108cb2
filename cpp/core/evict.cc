#include "core/evict.h"

#include <utility>
#include <vector>

#include "core/check.h"
#include "core/pause_point.h"
#include "core/prefetch.h"
#include "core/publish.h"
#include "core/retain.h"
#include "core/review.h"
#include "core/steps.h"

namespace kvfix::evict {
namespace {

bool newcomers_have_enough(const Window& window) {
    return window.newcomers->leave_enough(window.host_only_queue.size());
}

bool may_push_out(const Window& window, const Block& evicted, const Block& victim) {
    if (!window.newcomers || evicted.asked_again || evicted.priority > victim.priority) {
        return true;
    }
    return window.newcomers->may_enter() && !(victim.asked_again && newcomers_have_enough(window));
}

// The one that goes from each of the two groups of blocks that are only in host, and which of these goes: one that need
// not wait, else the lower priority, else a newcomer if they have enough.
BlockIndex host_victim(Window& window) {
    const auto waits = [&](BlockIndex block) { return window.waits(block) && window.tree.has_children(block); };
    const BlockIndex known = window.host_only_queue.victim(waits);
    const BlockIndex newcomer = window.host_newcomer_queue.victim(waits);
    if (known == kNone || newcomer == kNone) {
        return known == kNone ? newcomer : known;
    }
    if (waits(known) != waits(newcomer)) {
        return waits(known) ? newcomer : known;
    }
    const BlockStore& blocks = window.blocks;
    if (blocks[known].priority != blocks[newcomer].priority) {
        return blocks[known].priority < blocks[newcomer].priority ? known : newcomer;
    }
    return newcomers_have_enough(window) ? newcomer : known;
}

bool evict_host(State& state, Window& window, BlockIndex evicted) {
    const BlockIndex copy = window.host_redundant_queue.victim([](BlockIndex) { return false; });
    if (copy != kNone) {
        drop_host_copy(window, copy);
        return true;
    }
    const BlockIndex victim = host_victim(window);
    if (victim == kNone) {
        return false;
    }
    const BlockStore& blocks = window.blocks;
    if (evicted != kNone && !may_push_out(window, blocks[evicted], blocks[victim])) {
        ++state.current.blocks_declined;
        return false;
    }
    state.current.blocks_dropped += drop(state, window, victim);
    return true;
}

// The block's parent, and what finds it among its siblings and in the index, which an eviction to host leaves alone. With
// adaptive many are dropped, and noted.
void prefetch_around(const Window& window, BlockIndex block) {
    const Block& record = window.blocks[block];
    if (!window.has_host() || window.gone) {
        window.blocks.prefetch(block);
        window.tree.prefetch(record.key);
    }
    if (window.gone) {
        window.gone->prefetch(record.key);
    }
    if (record.in_tree && !is_root(record.parent)) {
        prefetch_memory(&window.blocks[record.parent.block()]);
    }
}

// Evictions come in runs, mostly up a path from its end: each touches a record, the one before it on the path, which is
// often the next to go, and their links, all of them cold in a large pool. So this fetches what later ones will touch.
void prefetch_victims(const Window& window, BlockIndex victim) {
    constexpr int kNear = 4;
    constexpr int kFar = 8;
    const EvictionQueue& queue = window.primary_queue;
    BlockIndex at = victim;
    for (int ahead = 1; ahead <= kFar; ++ahead) {
        at = queue.behind(at);
        if (at == kNone) {
            return;
        }
        if (ahead == kNear) {
            prefetch_around(window, at);
        }
    }
    prefetch_memory(&window.blocks[at]);
    queue.prefetch(at);
    if (window.has_host()) {
        window.host_redundant_queue.prefetch(at);
    }
}

void queue_offload(State& state, Window& window, BlockIndex victim, SlotIndex slot) {
    Block& record = window.blocks[victim];
    record.slot[kHost] = slot;
    record.begin_flight(kHost);
    ++window.in_flight[kHost];
    const SlotIndex source = detach_primary(window, victim);
    state.ledger.queue({TransferKind::offload, window.index, source, slot, record.num_tokens, victim, victim});
    ++state.current.blocks_offloaded;
    publish(state, window, EventKind::updated, victim, Tier::host);
    window.blocks.give_slot(kPrimary, source);
}

void evict_primary(State& state, Window& window) {
    const BlockIndex victim = window.primary_queue.victim(
        [&](BlockIndex block) { return window.waits(block) && window.tree.children_primary(block) != 0; });
    check(victim != kNone, "a primary block is needed and none can be evicted");
    prefetch_victims(window, victim);
    KVFIX_PAUSE("evict.picked");
    Block& record = window.blocks[victim];
    if (record.has(kHost)) {  // a current copy is there or on its way: nothing to move
        window.blocks.give_slot(kPrimary, detach_primary(window, victim));
        review_host(window, victim);
        publish(state, window, EventKind::updated, victim, Tier::host);
        return;
    }
    if (window.has_host() && record.priority >= state.config.offload_priority_min) {
        const std::uint32_t generation = record.generation;
        const SlotIndex slot = take_host_slot(state, window, victim);
        if (record.generation != generation) {  // it was dropped with an ancestor, to make room in host
            window.blocks.give_slot(kHost, slot);
            return;
        }
        if (slot != kNone) {
            queue_offload(state, window, victim, slot);
            return;
        }
    }
    state.current.blocks_dropped += drop(state, window, victim);
}

// A block at or below this one that nothing hangs below.
BlockIndex some_leaf(const Window& window, BlockIndex block) {
    for (BlockIndex child = block; child != kNone; child = window.tree.some_child(block)) {
        KVFIX_STEP();
        block = child;
        if (window.tree.by_prefix()) {
            break;
        }
    }
    return block;
}

// A reset drops in an order of its own, so it notes nothing.
void note_gone(const State& state, Window& window, BlockIndex block) {
    const Block& record = std::as_const(window.blocks)[block];
    if (window.gone && record.num_tokens == state.tokens_per_block() && state.resets == 0) {
        window.gone->note(record.key);
        window.newcomers->note_gone(record.key, record.asked_again);
    }
}

void unlink(State& state, Window& window, BlockIndex block) {
    // A block whose slot has just been taken over has none left. It was in primary.
    const Tier tier = window.blocks[block].host_only() ? Tier::host : Tier::primary;
    publish(state, window, EventKind::removed, block, tier);
    leave_queues(window, block);
    retain::stop_clock(window, block);
    if (window.has_host() && window.host_redundant_queue.contains(block)) {
        window.host_redundant_queue.remove(block);
    }
    note_gone(state, window, block);
    const BlockIndex parent = window.tree.block_of(window.blocks[block].parent);
    window.tree.remove(block);
    if (parent == kNone) {
        return;
    }
    if (window.tree.children_primary(parent) == 0) {
        window.primary_queue.unpark(parent);
    }
    if (window.has_host() && !window.tree.has_children(parent)) {
        window.host_only_queue.unpark(parent);
        window.host_newcomer_queue.unpark(parent);
    }
}

}  // namespace

bool at_hand(const Window& window, std::uint64_t blocks) {
    const std::uint64_t free = window.blocks.slots_free(kPrimary);
    if (blocks <= free) {
        return true;
    }
    BlockIndex victim = window.primary_queue.front();
    for (std::uint64_t left = blocks - free; left != 0; --left) {
        if (victim == kNone || window.tree.children_primary(victim) != 0) {
            return false;
        }
        victim = window.primary_queue.behind(victim);
    }
    return true;
}

SlotIndex take_primary_slot(State& state, Window& window) {
    if (window.blocks.slots_free(kPrimary) == 0) {
        evict_primary(state, window);
    }
    return window.blocks.take_slot(kPrimary);
}

SlotIndex take_host_slot(State& state, Window& window, BlockIndex evicted) {
    return window.blocks.slots_free(kHost) != 0 || evict_host(state, window, evicted) ? window.blocks.take_slot(kHost)
                                                                                      : kNone;
}

void drop_host_copy(Window& window, BlockIndex block) {
    if (window.host_redundant_queue.contains(block)) {
        window.host_redundant_queue.remove(block);
    }
    window.blocks.give_slot(kHost, window.blocks[block].slot[kHost]);
    window.blocks[block].slot[kHost] = kNone;
}

SlotIndex detach_primary(Window& window, BlockIndex block) {
    Block& record = window.blocks[block];
    if (window.primary_queue.contains(block)) {
        window.primary_queue.remove(block);
    }
    const SlotIndex slot = record.slot[kPrimary];
    record.slot[kPrimary] = kNone;
    if (record.in_tree) {
        if (const BlockIndex parent = window.tree.lose_primary(block); parent != kNone) {
            window.primary_queue.unpark(parent);
        }
    }
    return slot;
}

std::uint64_t drop(State& state, Window& window, BlockIndex block) {
    if (window.tree.by_prefix() || window.blocks[block].children == kNone) {
        unlink(state, window, block);
        review(state, window, block);
        return 1;
    }
    std::vector<BlockIndex> subtree{block};
    window.tree.collect_descendants(block, subtree);
    for (std::size_t i = subtree.size(); i-- > 0;) {  // children before parents
        unlink(state, window, subtree[i]);
    }
    for (const BlockIndex gone : subtree) {
        review(state, window, gone);
    }
    return subtree.size();
}

void begin_reset(State& state) {
    ++state.resets;
    for (Window& window : state.windows) {
        window.tree.note_change();
    }
}

bool reset_some(State& state, Sweep& sweep, std::uint32_t blocks_max) {
    for (; sweep.window < state.windows.size(); ++sweep.window, sweep.block = 0) {
        Window& window = state.windows[sweep.window];
        for (; sweep.block < window.blocks.size(); ++sweep.block) {
            KVFIX_STEP();
            const BlockIndex top{sweep.block};
            for (BlockIndex at = top; std::as_const(window.blocks)[top].in_tree;) {
                if (blocks_max-- == 0) {
                    return false;
                }
                const BlockIndex leaf = some_leaf(window, at);
                at = leaf == top ? top : window.tree.block_of(std::as_const(window.blocks)[leaf].parent);
                drop(state, window, leaf);
            }
        }
        window.tree.note_change();
    }
    --state.resets;
    return true;
}

}  // namespace kvfix::evict
