// Blocks that may be evicted, in the order in which they go: lowest priority first, then the longest in the queue, parents
// only when nothing else is left. Constant time: a parent that comes up is parked beside its queue until its last
// child has gone, so it is not looked at again.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/types.h"

namespace kvfix {

class EvictionQueue {
  public:
    explicit EvictionQueue(std::uint32_t blocks);

    void push(BlockIndex block, Priority priority);
    void remove(BlockIndex block);
    bool contains(BlockIndex block) const { return links_[block].list != kNoList; }
    std::uint32_t size() const { return size_; }
    // The block has become childless: it takes its turn again.
    void unpark(BlockIndex block);

    // The next victim, or kNone. `is_parent(block)` answers whether it must wait for its children.
    template <class IsParent>
    BlockIndex victim(IsParent&& is_parent);

    // The block behind a queued one, or kNone at the end of its list: a hint of the victims to come.
    BlockIndex behind(BlockIndex block) const {
        const BlockIndex next = links_[block].next;
        return next < blocks_ ? next : kNone;
    }
    void prefetch(BlockIndex block) const { __builtin_prefetch(&links_[block]); }

    // Calls visit(block, parked, priority): ready blocks in eviction order, then parked ones.
    template <class Visit>
    void for_each(Visit&& visit) const;
    // Calls visit(block) in the order of entry, per priority, parked or not.
    template <class Visit>
    void for_each_in_entry_order(Visit&& visit) const;

  private:
    static constexpr std::uint32_t kLists = kPriorityMax + 1U;
    static constexpr std::uint8_t kParked = 128;  // list number = priority, plus this while parked
    static constexpr std::uint8_t kNoList = 255;
    static constexpr std::uint64_t kEnteredMask =
        (std::uint64_t{1} << 56) - 1;  // two thousand years of a million entries a second

    struct Link {
        BlockIndex prev;
        BlockIndex next;
        std::uint64_t entered : 56;  // order of entry; lists ascend in it
        std::uint64_t list : 8;
    };

    // Sentinels lie behind the blocks: one per list, the parked lists after the ready ones.
    std::uint32_t sentinel(std::uint32_t list) const {
        return blocks_ + (list < kParked ? list : kLists + list - kParked);
    }
    static std::uint32_t lowest(const std::array<std::uint64_t, 2>& set) {
        return set[0] != 0 ? static_cast<std::uint32_t>(std::countr_zero(set[0]))
                           : 64U + static_cast<std::uint32_t>(std::countr_zero(set[1]));
    }
    void link_before(BlockIndex block, BlockIndex successor, std::uint32_t list);
    void unlink(BlockIndex block);
    void park(BlockIndex block);
    std::array<std::uint64_t, 2>& occupied(std::uint32_t list) { return list < kParked ? ready_ : parked_; }

    std::uint32_t blocks_;
    std::uint32_t size_ = 0;
    std::uint64_t entries_ = 0;
    std::array<std::uint64_t, 2> ready_{};   // priorities with a ready block
    std::array<std::uint64_t, 2> parked_{};  // priorities with a parked block
    std::vector<Link> links_;
};

template <class IsParent>
BlockIndex EvictionQueue::victim(IsParent&& is_parent) {
    while ((ready_[0] | ready_[1]) != 0) {
        const BlockIndex head = links_[sentinel(lowest(ready_))].next;
        if (!is_parent(head)) {
            return head;
        }
        park(head);
    }
    return (parked_[0] | parked_[1]) != 0 ? links_[sentinel(lowest(parked_) + kParked)].next : kNone;
}

template <class Visit>
void EvictionQueue::for_each(Visit&& visit) const {
    for (const std::uint32_t base : {0U, std::uint32_t{kParked}}) {
        for (std::uint32_t priority = 0; priority < kLists; ++priority) {
            const std::uint32_t end = sentinel(base + priority);
            for (BlockIndex at = links_[end].next; at != end; at = links_[at].next) {
                visit(at, base == kParked, static_cast<Priority>(priority));
            }
        }
    }
}

template <class Visit>
void EvictionQueue::for_each_in_entry_order(Visit&& visit) const {
    for (std::uint32_t priority = 0; priority < kLists; ++priority) {
        const std::uint32_t end_ready = sentinel(priority);
        const std::uint32_t end_parked = sentinel(priority + kParked);
        BlockIndex ready = links_[end_ready].next;
        BlockIndex parked = links_[end_parked].next;
        while (ready != end_ready || parked != end_parked) {
            const bool from_ready =
                parked == end_parked || (ready != end_ready && links_[ready].entered < links_[parked].entered);
            BlockIndex& at = from_ready ? ready : parked;
            visit(at);
            at = links_[at].next;
        }
    }
}

}  // namespace kvfix
