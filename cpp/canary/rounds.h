// Rounds over slots, each in a new random order, so that nothing in step with one escapes for ever.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "canary/fills.h"

namespace kvfix::canary {

inline constexpr std::size_t kStalePerSlotMax = 16;  // slots that a call throws out for each that it wants

// A slot that comes during a round waits for the next one. So a round ends, however many come, and each slot is drawn
// again. No call pays for more than it draws: the order is made as it is needed.
class Rounds {
  public:
    explicit Rounds(std::uint64_t seed) : random_(seed) {}

    // Nothing happens where it is known.
    void add(Slot slot) {
        const auto place = static_cast<std::size_t>(slot);
        if (place >= knows_.size()) {
            knows_.resize(place + 1);
        }
        if (!knows_[place]) {
            knows_[place] = true;
            following_.push_back(slot);
        }
    }

    // The next slots of this round, fewer at its end. One that is not wanted any more has to be added again.
    template <class IsWanted>
    std::vector<Slot> draw(std::size_t count, IsWanted&& is_wanted) {
        if (slots_.empty()) {
            std::swap(slots_, following_);
        }
        std::vector<Slot> found;
        for (std::size_t tries = count * kStalePerSlotMax; found.size() < count && tries > 0 && !slots_.empty();
             --tries) {
            const Slot slot = next();
            if (is_wanted(slot)) {
                found.push_back(slot);
            } else {
                knows_[static_cast<std::size_t>(slot)] = false;
            }
        }
        following_.insert(following_.end(), found.begin(), found.end());
        return found;
    }

  private:
    // Any of those that are left, which are in no order that matters.
    Slot next() {
        std::swap(slots_[std::uniform_int_distribution<std::size_t>(0, slots_.size() - 1)(random_)], slots_.back());
        const Slot slot = slots_.back();
        slots_.pop_back();
        return slot;
    }

    std::mt19937_64 random_;
    std::vector<bool> knows_;  // by slot
    std::vector<Slot> slots_;  // that are left of this round
    std::vector<Slot> following_;
};

}  // namespace kvfix::canary
