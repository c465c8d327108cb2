// Blocks that may be evicted, in the order in which they go: lowest priority first, then the longest in the queue, parents
// only when nothing else is left. A parent that comes up is parked beside the queue until its last child has gone, so it is
// not looked at again.
//
// Blocks enter lists, one for each priority, in constant time. Those that are parked and those that come back from there
// stand in heaps: in whatever order children go, none of them costs more than the logarithm of their number.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/eviction_heap.h"
#include "core/types.h"

namespace kvfix {

class EvictionQueue {
  public:
    explicit EvictionQueue(std::uint32_t blocks);

    void push(BlockIndex block, Priority priority);
    void remove(BlockIndex block);
    bool contains(BlockIndex block) const { return links_[block].place != kNowhere; }
    std::uint32_t size() const { return size_; }
    // The block has become childless: it takes its turn again.
    void unpark(BlockIndex block);

    // The next victim, or kNone. `is_parent(block)` answers whether it must wait for its children.
    template <class IsParent>
    BlockIndex victim(IsParent&& is_parent);

    // The block behind a queued one, or kNone where its list does not say: a hint of the victims to come.
    BlockIndex behind(BlockIndex block) const {
        const BlockIndex next = links_[block].next;
        return next < blocks_ ? next : kNone;
    }
    void prefetch(BlockIndex block) const { __builtin_prefetch(&links_[block]); }

    // Calls visit(block, priority) for each priority in the order of entry, parked or not.
    template <class Visit>
    void for_each(Visit&& visit) const;

  private:
    static constexpr std::uint32_t kPriorities = kPriorityMax + 1U;
    static constexpr unsigned kEnteredBits = 55;  // a thousand years of a million entries a second
    static constexpr std::uint64_t kEnteredMask = (std::uint64_t{1} << kEnteredBits) - 1;

    enum Place : std::uint8_t { kNowhere, kListed, kReturned, kParked };

    struct Link {
        BlockIndex prev;                       // in a heap: the position there
        BlockIndex next;                       // in a heap: kNone
        std::uint64_t entered : kEnteredBits;  // order of entry; lists ascend in it
        std::uint64_t place : 2;
        std::uint64_t priority : 7;
    };

    // The lists' ends lie behind the blocks.
    std::uint32_t end_of(std::uint32_t priority) const { return blocks_ + priority; }
    std::uint32_t lowest_listed() const {
        return listed_[0] != 0 ? static_cast<std::uint32_t>(std::countr_zero(listed_[0]))
                               : 64U + static_cast<std::uint32_t>(std::countr_zero(listed_[1]));
    }
    // Ascends in the order in which blocks go.
    std::uint64_t key(BlockIndex block) const {
        return std::uint64_t{links_[block].priority} << kEnteredBits | links_[block].entered;
    }
    BlockIndex first_ready() const;
    std::vector<EvictionHeap::Entry> heaped_in_order() const;
    void unlink(BlockIndex block);
    void enter_heap(BlockIndex block, Place place);
    EvictionHeap& heap(Place place) { return place == kParked ? parked_ : returned_; }

    std::uint32_t blocks_;
    std::uint32_t size_ = 0;
    std::uint64_t entries_ = 0;
    std::array<std::uint64_t, 2> listed_{};  // priorities with a block in their list
    std::vector<Link> links_;
    EvictionHeap parked_;
    EvictionHeap returned_;
};

template <class IsParent>
BlockIndex EvictionQueue::victim(IsParent&& is_parent) {
    for (BlockIndex first = first_ready(); first != kNone; first = first_ready()) {
        if (!is_parent(first)) {
            return first;
        }
        unlink(first);
        enter_heap(first, kParked);
    }
    return parked_.empty() ? kNone : parked_.top().block;
}

template <class Visit>
void EvictionQueue::for_each(Visit&& visit) const {
    const std::vector<EvictionHeap::Entry> heaped = heaped_in_order();
    auto next = heaped.begin();
    for (std::uint32_t priority = 0; priority < kPriorities; ++priority) {
        const auto visit_heaped_before = [&](std::uint64_t end) {
            for (; next != heaped.end() && next->key < end; ++next) {
                visit(next->block, static_cast<Priority>(priority));
            }
        };
        for (BlockIndex at = links_[end_of(priority)].next; at != end_of(priority); at = links_[at].next) {
            visit_heaped_before(key(at));
            visit(at, static_cast<Priority>(priority));
        }
        visit_heaped_before(std::uint64_t{priority + 1} << kEnteredBits);
    }
}

}  // namespace kvfix
