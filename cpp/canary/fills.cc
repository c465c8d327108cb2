#include "canary/fills.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/check.h"

namespace kvfix::canary {

FillIndex Fills::make(Requester by, std::uint32_t tokens, bool is_complete) {
    if (free_ == kNoFill) {
        add_chunk();
    }
    const FillIndex index = free_;
    Fill& fill = (*this)[index];
    free_ = static_cast<FillIndex>(fill.filler);
    fill = {.filler = by.value_or(0),
            .tokens = static_cast<std::uint16_t>(tokens & kTokensPerBlockMax),
            .is_by_nobody = !by.has_value(),
            .is_complete = is_complete};
    ++count_;
    return index;
}

void Fills::add_chunk() {
    const auto first = static_cast<FillIndex>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<Chunk>());
    chunks_.back()->digests = std::make_unique_for_overwrite<std::uint64_t[]>(std::size_t{kChunk} * layers_);
    for (FillIndex place = kChunk; place-- > 0;) {
        chunks_.back()->fills[place].filler = free_;
        free_ = first + place;
    }
}

void Fills::use(FillIndex index) {
    std::uint16_t& uses = (*this)[index].uses;
    check(uses < std::numeric_limits<std::uint16_t>::max(), "a block is in 65,535 slots and looks at once");
    ++uses;
}

void Fills::leave(FillIndex index) {
    Fill& fill = (*this)[index];
    if (--fill.uses == 0) {
        fill.filler = free_;
        free_ = index;
        --count_;
    }
}

std::size_t FilledSlots::checked(Slot slot) {
    if (slot < 0 || slot >= kSlotsMax) {
        throw std::invalid_argument("slot " + std::to_string(slot) + " is not in 0 to " +
                                    std::to_string(kSlotsMax - 1) + "; a list of blocks was read that is not one");
    }
    return static_cast<std::size_t>(slot);
}

void FilledSlots::put(Slot slot, FillIndex fill) {
    const std::size_t place = checked(slot);
    fills_->use(fill);
    if (place >= by_slot_.size()) {
        by_slot_.resize(place + 1, kNoFill);
    }
    if (const FillIndex before = std::exchange(by_slot_[place], fill); before != kNoFill) {
        fills_->leave(before);
    }
}

void FilledSlots::forget(Slot slot) {
    if (const FillIndex before = at(slot); before != kNoFill) {
        by_slot_[static_cast<std::size_t>(slot)] = kNoFill;
        fills_->leave(before);
    }
}

}  // namespace kvfix::canary
