#include "core/eviction_queue.h"

#include <algorithm>
#include <bit>

namespace kvfix {
namespace {

// The lowest member of a set of priorities that is not empty.
std::uint32_t lowest(const std::array<std::uint64_t, 2>& set) {
    return set[0] != 0 ? static_cast<std::uint32_t>(std::countr_zero(set[0]))
                       : 64U + static_cast<std::uint32_t>(std::countr_zero(set[1]));
}

}  // namespace

EvictionQueue::EvictionQueue(std::uint32_t blocks, std::uint32_t queues)
    : owned_links_(std::size_t{blocks} + std::size_t{queues} * kEnds),
      links_(owned_links_.data()),
      blocks_(blocks),
      ready_{.ends = blocks, .listed = {}, .late = {}},
      parked_{.ends = blocks + kPriorities, .listed = {}, .late = {}} {
    check(queues <= kLast, "more eviction queues share links than their places tell apart");
    for (std::size_t i = 0; i < owned_links_.size(); ++i) {
        const auto self = static_cast<std::uint32_t>(i);
        links_[i] = Link{self, self, 0, kNowhere, 0};
    }
}

EvictionQueue::EvictionQueue(EvictionQueue& first, std::uint8_t queue)
    : links_(first.links_),
      blocks_(first.blocks_),
      queue_(queue),
      ready_{.ends = first.blocks_ + (queue - kFirst) * kEnds, .listed = {}, .late = {}},
      parked_{.ends = first.blocks_ + (queue - kFirst) * kEnds + kPriorities, .listed = {}, .late = {}} {}

void EvictionQueue::push(BlockIndex block, Priority priority) {
    Link& link = links_[number(block)];
    check(link.place == kNowhere, "a block enters an eviction queue while it stands in one");
    link.entered = ++entries_ & kEnteredMask;
    link.priority = priority & 0x7fU;
    digest_.add(block, key(block));
    enter(block, false);
    ++size_;
}

void EvictionQueue::remove(BlockIndex block) {
    check(contains(block), "a block leaves an eviction queue that it is not in");
    digest_.remove(block, key(block));
    leave(block);
    --size_;
}

void EvictionQueue::unpark(BlockIndex block) {
    if (is_parked(links_[number(block)])) {
        leave(block);
        enter(block, false);
    }
}

void EvictionQueue::enter(BlockIndex block, bool parked) {
    Lane& to = parked ? parked_ : ready_;
    Link& link = links_[number(block)];
    link.place = (2U * queue_ + (parked ? 1U : 0U)) & 15U;
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
    Lane& from = is_parked(link) ? parked_ : ready_;
    link.place = kNowhere;
    if (link.next == kNone) {
        from.late.remove(link.prev,
                         [this](BlockIndex at, std::uint32_t position) { links_[number(at)].prev = position; });
        return;
    }
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    if (link.prev == link.next) {  // only the list's end is left
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

std::uint64_t EvictionQueue::digest() {
    return digest_.value(
        [this] { for_each([this](BlockIndex block, Priority /*priority*/) { digest_.add(block, key(block)); }); });
}

std::vector<BlockIndex> EvictionQueue::in_order() const {
    std::vector<BlockIndex> out;
    out.reserve(size_);
    for (std::uint32_t end = ready_.ends; end < ready_.ends + kEnds; ++end) {
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
