// Blocks that may be evicted, in the order in which they go: lowest priority first, then the longest in the queue, parents
// only when nothing else is left. A parent that comes up is parked beside the queue until its last child has gone, so it is
// not looked at again.
//
// What comes in order stands in lists, one for each priority, and costs constant time. What does not, such as a parent that
// comes back, stands in a heap: in whatever order children go, nothing costs more than the logarithm of their number.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/eviction_heap.h"
#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

class EvictionQueue {
  public:
    explicit EvictionQueue(std::uint32_t blocks);
    // Of the same blocks, each of which stands in at most one of the two at a time: its links, 16 bytes, are there once. The first
    // queue must outlive this one, and none of them moves.
    static EvictionQueue beside(EvictionQueue& first) { return {first, kSecond}; }
    EvictionQueue(const EvictionQueue&) = delete;
    EvictionQueue& operator=(const EvictionQueue&) = delete;
    ~EvictionQueue() = default;

    void push(BlockIndex block, Priority priority);
    void remove(BlockIndex block);
    bool contains(BlockIndex block) const { return links_[number(block)].place / 2 == queue_; }
    std::uint32_t size() const { return size_; }
    // The block has become childless: it takes its turn again.
    void unpark(BlockIndex block);

    // The next victim, or kNone. `is_parent(block)` answers whether it must wait for its children.
    template <class IsParent>
    BlockIndex victim(IsParent&& is_parent);

    // The block behind a queued one, or kNone where its list does not say: a hint of the victims to come.
    BlockIndex behind(BlockIndex block) const {
        const std::uint32_t next = links_[number(block)].next;
        return next < blocks_ ? BlockIndex{next} : kNone;
    }
    void prefetch(BlockIndex block) const { __builtin_prefetch(&links_[number(block)]); }

    // Which blocks wait, and in what order. Whether a parent is parked yet leaves no trace: only the order counts.
    std::uint64_t digest();

    // Calls visit(block, priority) for each priority in the order of entry, parked or not.
    template <class Visit>
    void for_each(Visit&& visit) const;

  private:
    static constexpr std::uint32_t kPriorities = kPriorityMax + 1U;
    static constexpr std::uint32_t kEnds = 2 * kPriorities;  // of one queue's lists
    static constexpr unsigned kEnteredBits = 54;             // five hundred years of a million entries a second
    static constexpr std::uint64_t kEnteredMask = (std::uint64_t{1} << kEnteredBits) - 1;

    // Where a block stands: twice the number of its queue, and one more where it is parked.
    static constexpr std::uint8_t kNowhere = 0;
    static constexpr std::uint8_t kFirst = 1;  // queues that share links
    static constexpr std::uint8_t kSecond = 2;

    struct Link {
        std::uint32_t prev;                    // a link; in a heap: the position there
        std::uint32_t next;                    // a link; in a heap: kNone
        std::uint64_t entered : kEnteredBits;  // order of entry; lists ascend in it
        std::uint64_t place : 3;
        std::uint64_t priority : 7;
    };

    struct Lane {
        std::uint32_t ends;                     // the links that end its lists, one for each priority
        std::array<std::uint64_t, 2> listed{};  // priorities with a block in their list
        EvictionHeap late;                      // blocks that came after younger ones
    };

    // Ascends in the order in which blocks go.
    std::uint64_t key(BlockIndex block) const {
        const Link& link = links_[number(block)];
        return std::uint64_t{link.priority} << kEnteredBits | link.entered;
    }
    EvictionQueue(EvictionQueue& first, std::uint8_t queue);
    bool is_parked(const Link& link) const { return link.place == 2U * queue_ + 1; }
    void enter(BlockIndex block, bool parked);
    void leave(BlockIndex block);
    BlockIndex first(const Lane& lane) const;
    std::vector<BlockIndex> in_order() const;

    std::vector<Link> owned_links_;  // of the blocks, by their numbers, and behind them the lists' ends of both queues
    Link* links_;
    std::uint32_t blocks_;
    std::uint8_t queue_ = kFirst;
    std::uint32_t size_ = 0;
    std::uint64_t entries_ = 0;
    WatchedDigest digest_;
    Lane ready_;
    Lane parked_;
};

template <class IsParent>
BlockIndex EvictionQueue::victim(IsParent&& is_parent) {
    for (BlockIndex next = first(ready_); next != kNone; next = first(ready_)) {
        if (!is_parent(next)) {
            return next;
        }
        leave(next);
        enter(next, true);
    }
    return first(parked_);
}

template <class Visit>
void EvictionQueue::for_each(Visit&& visit) const {
    for (const BlockIndex block : in_order()) {
        visit(block, static_cast<Priority>(links_[number(block)].priority));
    }
}

}  // namespace kvfix
