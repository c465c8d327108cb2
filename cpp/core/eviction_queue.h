// Blocks that may be evicted, in the order in which they go: the lowest priority first, then the longest in the queue,
// and parents only when nothing else is left. A parent whose turn comes is parked beside the queue until its last child
// has gone, so that nobody looks at it again.
//
// Blocks that come in order stand in lists, one for each priority, which costs constant time. Blocks that come out of
// order, such as a parent that returns, stand in a heap. So in whatever order children go, no step costs more than the
// logarithm of their number.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/eviction_heap.h"
#include "core/prefetch.h"
#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

class EvictionQueue {
  public:
    explicit EvictionQueue(std::uint32_t blocks) : EvictionQueue(blocks, 2) {}
    // One of `queues` over the same blocks, each of which stands in at most one of them at a time. They share the links,
    // 16 bytes for each block. This one is the first; it must outlive the others, and none may move.
    EvictionQueue(std::uint32_t blocks, std::uint32_t queues);
    // The queue with that number, from 1 on, beside the first.
    static EvictionQueue beside(EvictionQueue& first, std::uint32_t number = 1) {
        return {first, static_cast<std::uint8_t>(kFirst + number)};
    }
    EvictionQueue(const EvictionQueue&) = delete;
    EvictionQueue& operator=(const EvictionQueue&) = delete;
    ~EvictionQueue() = default;

    void push(BlockIndex block, Priority priority);
    void remove(BlockIndex block);
    bool contains(BlockIndex block) const { return links_[number(block)].place / 2 == queue_; }
    std::uint32_t size() const { return size_; }
    // The block has become childless and takes its turn again.
    void unpark(BlockIndex block);

    // The next victim, or kNone. `is_parent(block)` says whether the block must wait for its children.
    template <class IsParent>
    BlockIndex victim(IsParent&& is_parent);

    // The next victim unless it is a parent; those behind it follow in order. kNone if blocks that came late are among them.
    BlockIndex front() const { return ready_.late.empty() ? first(ready_) : kNone; }
    // The block behind a queued one, as a hint of victims to come; kNone if the list does not say.
    BlockIndex behind(BlockIndex block) const {
        const std::uint32_t next = links_[number(block)].next;
        return next < blocks_ ? BlockIndex{next} : kNone;
    }
    void prefetch(BlockIndex block) const { prefetch_memory(&links_[number(block)]); }

    // Covers which blocks wait, and in what order. Whether a parent is parked yet does not matter.
    std::uint64_t digest();

    // Calls visit(block, priority) for each priority in the order of entry, parked blocks included.
    template <class Visit>
    void for_each(Visit&& visit) const;

  private:
    static constexpr std::uint32_t kPriorities = kPriorityMax + 1U;
    static constexpr std::uint32_t kEnds = 2 * kPriorities;  // of one queue's lists
    static constexpr unsigned kEnteredBits = 53;  // enough for two hundred years at a million entries a second
    static constexpr std::uint64_t kEnteredMask = (std::uint64_t{1} << kEnteredBits) - 1;

    // Where a block stands: twice its queue's number, plus one if it is parked.
    static constexpr std::uint8_t kNowhere = 0;
    static constexpr std::uint8_t kFirst = 1;  // of the queues that share links
    static constexpr std::uint8_t kLast = 7;

    struct Link {
        std::uint32_t prev;                    // a link; in a heap, the position there
        std::uint32_t next;                    // a link; in a heap, kNone
        std::uint64_t entered : kEnteredBits;  // order of entry, ascending in each list
        std::uint64_t place : 4;
        std::uint64_t priority : 7;
    };

    struct Lane {
        std::uint32_t ends;                     // the links that end its lists, one for each priority
        std::array<std::uint64_t, 2> listed{};  // priorities with a block in their list
        EvictionHeap late;                      // blocks that arrived after younger ones
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

    std::vector<Link> owned_links_;  // one for each block by number, then the ends of all queues' lists
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
