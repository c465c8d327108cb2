#include "core/eviction_queue.h"

namespace kvfix {

EvictionQueue::EvictionQueue(std::uint32_t blocks)
    : blocks_(blocks), links_(std::size_t{blocks} + std::size_t{2} * kLists) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        const auto self = static_cast<BlockIndex>(i);
        links_[i] = Link{self, self, 0, kNoList};
    }
}

void EvictionQueue::link_before(BlockIndex block, BlockIndex successor, std::uint32_t list) {
    const BlockIndex before = links_[successor].prev;
    links_[block].prev = before;
    links_[block].next = successor;
    links_[block].list = static_cast<std::uint8_t>(list);
    links_[before].next = block;
    links_[successor].prev = block;
    const std::uint32_t priority = list & (kParked - 1U);
    occupied(list)[priority / 64] |= std::uint64_t{1} << (priority % 64);
}

void EvictionQueue::unlink(BlockIndex block) {
    const std::uint32_t list = links_[block].list;
    const BlockIndex before = links_[block].prev;
    const BlockIndex after = links_[block].next;
    links_[before].next = after;
    links_[after].prev = before;
    if (before == after) {
        const std::uint32_t priority = list & (kParked - 1U);
        occupied(list)[priority / 64] &= ~(std::uint64_t{1} << (priority % 64));
    }
    links_[block].list = kNoList;
}

void EvictionQueue::push(BlockIndex block, Priority priority) {
    check(!contains(block), "a block enters an eviction queue twice");
    links_[block].entered = ++entries_ & kEnteredMask;
    link_before(block, sentinel(priority), priority);
    ++size_;
}

void EvictionQueue::remove(BlockIndex block) {
    check(contains(block), "a block leaves an eviction queue that it is not in");
    unlink(block);
    --size_;
}

void EvictionQueue::park(BlockIndex block) {
    const std::uint32_t list = links_[block].list + kParked;
    unlink(block);
    // From the newest end: blocks come up in order, so this rarely takes a step.
    const std::uint32_t end = sentinel(list);
    BlockIndex successor = end;
    while (links_[successor].prev != end && links_[links_[successor].prev].entered > links_[block].entered) {
        successor = links_[successor].prev;
    }
    link_before(block, successor, list);
}

void EvictionQueue::unpark(BlockIndex block) {
    const std::uint32_t list = links_[block].list;
    if (list == kNoList || list < kParked) {
        return;
    }
    unlink(block);
    // From the oldest end: only blocks that were parked and are older still stand before it.
    const std::uint32_t end = sentinel(list - kParked);
    BlockIndex successor = links_[end].next;
    while (successor != end && links_[successor].entered < links_[block].entered) {
        successor = links_[successor].next;
    }
    link_before(block, successor, list - kParked);
}

}  // namespace kvfix
