// What goes when room is needed, and what goes with it.
#include <vector>

#include "core/check.h"
#include "core/pause_point.h"
#include "core/window_pool.h"

namespace kvfix {

void WindowPool::evict_primary() {
    const BlockIndex victim = primary_queue_.victim([this](BlockIndex b) { return store[b].children_primary != 0; });
    check(victim != kNone, "a primary block is needed and none can be evicted");
    prefetch_victims(victim);
    KVFIX_PAUSE("evict.picked");
    Block& record = store[victim];
    if (record.has(kHost)) {  // a clean copy: nothing to move
        store.give_slot(kPrimary, detach_primary(victim));
        review_host(victim);
        publish(EventKind::updated, victim, Tier::host);
        return;
    }
    if (config.blocks_host != 0 && record.priority >= services_.config.offload_priority_min) {
        const std::uint32_t generation = record.generation;
        const SlotIndex slot = take_host_slot();
        if (record.generation != generation) {  // it went with an ancestor that made room in host
            store.give_slot(kHost, slot);
            return;
        }
        if (slot != kNone) {
            record.slot[kHost] = slot;
            record.begin_flight(kHost);
            ++in_flight_[kHost];
            const SlotIndex source = detach_primary(victim);
            services_.ledger.queue({TransferKind::offload, window, source, slot, record.num_tokens, victim, victim});
            ++services_.counters.blocks_offloaded;
            publish(EventKind::updated, victim, Tier::host);
            store.give_slot(kPrimary, source);
            return;
        }
    }
    services_.counters.blocks_dropped += drop_counted(victim);
}

// Evictions come in rows, and each touches a record, its links, its parent and its place in the index, all of them cold in a
// large pool. What the next two will touch is fetched while this one works.
void WindowPool::prefetch_victims(BlockIndex victim) const {
    const BlockIndex next = primary_queue_.behind(victim);
    if (next == kNone) {
        return;
    }
    tree.prefetch(store[next].key);
    if (store[next].in_tree && !is_root(store[next].parent)) {
        __builtin_prefetch(&store[store[next].parent]);
    }
    if (const BlockIndex after = primary_queue_.behind(next); after != kNone) {
        store.prefetch(after);
        primary_queue_.prefetch(after);
    }
}

SlotIndex WindowPool::take_host_slot() {
    return store.slots_free(kHost) != 0 || evict_host() ? store.take_slot(kHost) : kNone;
}

bool WindowPool::evict_host() {
    const BlockIndex copy = host_redundant_queue_.victim([](BlockIndex) { return false; });
    if (copy != kNone) {
        host_redundant_queue_.remove(copy);
        store.give_slot(kHost, store[copy].slot[kHost]);
        store[copy].slot[kHost] = kNone;
        return true;
    }
    const BlockIndex victim = host_only_queue_.victim([this](BlockIndex b) { return store[b].children != kNone; });
    if (victim == kNone) {
        return false;
    }
    services_.counters.blocks_dropped += drop_counted(victim);
    return true;
}

void WindowPool::gain_primary(BlockIndex block, SlotIndex slot) {
    Block& record = store[block];
    record.slot[kPrimary] = slot;
    if (record.in_tree && !is_root(record.parent)) {
        ++store[record.parent].children_primary;
    }
}

SlotIndex WindowPool::detach_primary(BlockIndex block) {
    Block& record = store[block];
    if (primary_queue_.contains(block)) {
        primary_queue_.remove(block);
    }
    const SlotIndex slot = record.slot[kPrimary];
    record.slot[kPrimary] = kNone;
    if (record.in_tree && !is_root(record.parent) && --store[record.parent].children_primary == 0) {
        primary_queue_.unpark(record.parent);
    }
    return slot;
}

// ------------------------------------------------------------------------------------------------ tree

void WindowPool::enter_tree(BlockIndex block, ParentRef parent, std::optional<std::int64_t> lora_id) {
    tree.add(block, parent);
    ++services_.counters.blocks_stored;
    publish(EventKind::stored, block, Tier::primary, lora_id);
}

void WindowPool::unlink(BlockIndex block) {
    publish(EventKind::removed, block, store[block].has(kPrimary) ? Tier::primary : Tier::host);
    leave_queues(block);
    stop_clock(block);
    if (config.blocks_host != 0 && host_redundant_queue_.contains(block)) {
        host_redundant_queue_.remove(block);
    }
    const ParentRef parent = tree.remove(block);
    if (is_root(parent)) {
        return;
    }
    if (store[parent].children_primary == 0) {
        primary_queue_.unpark(parent);
    }
    if (config.blocks_host != 0 && store[parent].children == kNone) {
        host_only_queue_.unpark(parent);
    }
}

void WindowPool::drop(BlockIndex block) { drop_counted(block); }

std::uint64_t WindowPool::drop_counted(BlockIndex block) {
    if (store[block].children == kNone) {
        unlink(block);
        review(block);
        return 1;
    }
    std::vector<BlockIndex> subtree{block};
    tree.collect_descendants(block, subtree);
    for (std::size_t i = subtree.size(); i-- > 0;) {  // children before parents
        unlink(subtree[i]);
    }
    for (const BlockIndex gone : subtree) {
        review(gone);
    }
    return subtree.size();
}

void WindowPool::drop_everything() {
    std::vector<BlockIndex> all;
    tree.collect_all(all);
    for (const BlockIndex block : all) {
        if (store[block].in_tree && is_root(store[block].parent)) {
            drop(block);
        }
    }
}

}  // namespace kvfix
