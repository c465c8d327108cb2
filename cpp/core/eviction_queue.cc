#include "core/eviction_queue.h"

#include <algorithm>

namespace kvfix {

EvictionQueue::EvictionQueue(std::uint32_t blocks) : blocks_(blocks), links_(std::size_t{blocks} + kPriorities) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        const auto self = static_cast<BlockIndex>(i);
        links_[i] = Link{self, self, 0, kNowhere, 0};
    }
}

void EvictionQueue::push(BlockIndex block, Priority priority) {
    check(!contains(block), "a block enters an eviction queue twice");
    const std::uint32_t end = end_of(priority);
    const BlockIndex before = links_[end].prev;
    links_[block] = Link{before, end, ++entries_ & kEnteredMask, kListed, priority & 0x7fU};
    links_[before].next = block;
    links_[end].prev = block;
    listed_[priority / 64] |= std::uint64_t{1} << (priority % 64);
    ++size_;
}

void EvictionQueue::remove(BlockIndex block) {
    check(contains(block), "a block leaves an eviction queue that it is not in");
    unlink(block);
    --size_;
}

void EvictionQueue::unpark(BlockIndex block) {
    if (links_[block].place == kParked) {
        unlink(block);
        enter_heap(block, kReturned);
    }
}

BlockIndex EvictionQueue::first_ready() const {
    const bool none_listed = (listed_[0] | listed_[1]) == 0;
    const BlockIndex first = none_listed ? kNone : links_[end_of(lowest_listed())].next;
    if (!returned_.empty() && (first == kNone || returned_.top().key < key(first))) {
        return returned_.top().block;
    }
    return first;
}

void EvictionQueue::unlink(BlockIndex block) {
    Link& link = links_[block];
    if (link.place == kListed) {
        links_[link.prev].next = link.next;
        links_[link.next].prev = link.prev;
        if (link.prev == link.next) {  // the list's end alone is left
            listed_[link.priority / 64] &= ~(std::uint64_t{1} << (link.priority % 64));
        }
    } else {
        heap(static_cast<Place>(link.place)).remove(link.prev, [this](BlockIndex moved, std::uint32_t position) {
            links_[moved].prev = position;
        });
    }
    link.place = kNowhere;
}

void EvictionQueue::enter_heap(BlockIndex block, Place place) {
    links_[block].place = place & 3U;
    links_[block].next = kNone;
    heap(place).push({key(block), block},
                     [this](BlockIndex moved, std::uint32_t position) { links_[moved].prev = position; });
}

std::vector<EvictionHeap::Entry> EvictionQueue::heaped_in_order() const {
    std::vector<EvictionHeap::Entry> out(parked_.entries().begin(), parked_.entries().end());
    out.insert(out.end(), returned_.entries().begin(), returned_.entries().end());
    std::ranges::sort(out, {}, &EvictionHeap::Entry::key);
    return out;
}

}  // namespace kvfix
