#include "core/eviction_queue.h"

#include <algorithm>
#include <bit>

namespace kvfix {
namespace {

// The lowest of a set of priorities that is not empty.
std::uint32_t lowest(const std::array<std::uint64_t, 2>& set) {
    return set[0] != 0 ? static_cast<std::uint32_t>(std::countr_zero(set[0]))
                       : 64U + static_cast<std::uint32_t>(std::countr_zero(set[1]));
}

}  // namespace

EvictionQueue::EvictionQueue(std::uint32_t blocks)
    : blocks_(blocks),
      ready_{.ends = blocks, .listed = {}, .late = {}},
      parked_{.ends = blocks + kPriorities, .listed = {}, .late = {}},
      links_(std::size_t{blocks} + std::size_t{2} * kPriorities) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        const auto self = static_cast<std::uint32_t>(i);
        links_[i] = Link{self, self, 0, kNowhere, 0};
    }
}

void EvictionQueue::push(BlockIndex block, Priority priority) {
    check(!contains(block), "a block enters an eviction queue twice");
    Link& link = links_[number(block)];
    link.entered = ++entries_ & kEnteredMask;
    link.priority = priority & 0x7fU;
    digest_.add(member(block));
    enter(block, kReady);
    ++size_;
}

void EvictionQueue::remove(BlockIndex block) {
    check(contains(block), "a block leaves an eviction queue that it is not in");
    digest_.remove(member(block));
    leave(block);
    --size_;
}

void EvictionQueue::unpark(BlockIndex block) {
    if (links_[number(block)].place == kParked) {
        leave(block);
        enter(block, kReady);
    }
}

void EvictionQueue::enter(BlockIndex block, Place place) {
    Lane& to = lane(place);
    Link& link = links_[number(block)];
    link.place = place & 3U;
    const std::uint32_t priority = link.priority;
    const std::uint32_t end = to.ends + priority;
    const std::uint32_t last = links_[end].prev;
    if (last != end && links_[last].entered > link.entered) {
        link.next = kNone;
        to.late.push({key(block), block},
                     [this](BlockIndex at, std::uint32_t position) { links_[number(at)].prev = position; });
        return;
    }
    link.prev = last;
    link.next = end;
    links_[last].next = number(block);
    links_[end].prev = number(block);
    to.listed[priority / 64] |= std::uint64_t{1} << (priority % 64);
}

void EvictionQueue::leave(BlockIndex block) {
    Link& link = links_[number(block)];
    Lane& from = lane(static_cast<Place>(link.place));
    link.place = kNowhere;
    if (link.next == kNone) {
        from.late.remove(link.prev,
                         [this](BlockIndex at, std::uint32_t position) { links_[number(at)].prev = position; });
        return;
    }
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    if (link.prev == link.next) {  // the list's end alone is left
        from.listed[link.priority / 64] &= ~(std::uint64_t{1} << (link.priority % 64));
    }
}

BlockIndex EvictionQueue::first(const Lane& from) const {
    const bool none_listed = (from.listed[0] | from.listed[1]) == 0;
    const BlockIndex listed =
        none_listed ? BlockIndex{kNone} : BlockIndex{links_[from.ends + lowest(from.listed)].next};
    if (!from.late.empty() && (listed == kNone || from.late.top().key < key(listed))) {
        return from.late.top().block;
    }
    return listed;
}

std::vector<BlockIndex> EvictionQueue::in_order() const {
    std::vector<BlockIndex> out;
    out.reserve(size_);
    for (std::size_t end = blocks_; end < links_.size(); ++end) {
        for (std::uint32_t at = links_[end].next; at != end; at = links_[at].next) {
            out.push_back(BlockIndex{at});
        }
    }
    for (const Lane* each : {&ready_, &parked_}) {
        for (const EvictionHeap::Entry& entry : each->late.entries()) {
            out.push_back(entry.block);
        }
    }
    const auto by_key = [this](BlockIndex block) { return key(block); };
    if (!std::ranges::is_sorted(out, {}, by_key)) {
        std::ranges::sort(out, {}, by_key);
    }
    return out;
}

}  // namespace kvfix
