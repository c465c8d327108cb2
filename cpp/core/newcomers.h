// How much of a full host tier belongs to newcomers: blocks for which no second request has asked yet. Most of them
// never come back; but where most of what comes back fits, they bring more than what was used before and is over.
//
// The share follows what the tier lacks. A prefix that comes back soon after it was dropped would have been found in a
// larger tier: as a newcomer, it wants a larger share for newcomers, otherwise a smaller one. Each side is weighed by
// how many drops are remembered of the other. Where the share is very small, newcomers are not worth a copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/recent_keys.h"

namespace kvfix {

class Newcomers {
  public:
    explicit Newcomers(std::uint32_t slots)
        : slots_(slots),
          step_(std::max(kStepMin, kWhole / std::max(slots, 1U))),
          gone_{RecentKeys(slots / 16), RecentKeys(slots / 16)} {}

    // Whether a newcomer may push another block out.
    bool may_enter() const { return share_ >= kShareMin; }
    // Whether so many others leave newcomers their share, so that none of them has to go for one. Others are counted,
    // since most newcomers may be on their way: a long prompt pushes more blocks out at once than a small tier holds.
    bool leave_enough(std::uint32_t others) const {
        return others * std::uint64_t{kWhole} <= std::uint64_t{kWhole - share_} * slots_;
    }
    std::uint32_t share() const { return share_; }  // in millionths of the tier

    void note_gone(std::uint64_t key, bool asked_again) { gone_[asked_again ? 1 : 0].note(key); }
    // A prompt had to compute the block with this key.
    void note_missed(std::uint64_t key) {
        if (gone_[0].contains(key)) {
            const std::uint64_t more = step_ * weight(1) / weight(0);
            share_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(kWhole, share_ + more));
        } else if (gone_[1].contains(key)) {
            const std::uint64_t less = step_ * weight(0) / weight(1);
            share_ -= static_cast<std::uint32_t>(std::min<std::uint64_t>(share_, less));
        }
    }

  private:
    static constexpr std::uint32_t kWhole = 1'000'000;
    static constexpr std::uint32_t kShareMin = kWhole / 32;
    static constexpr std::uint32_t kStepMin = 200;

    std::uint64_t weight(std::size_t side) const { return std::max(gone_[side].size(), 1U); }

    std::uint32_t slots_;
    std::uint64_t step_;  // a slot, but no less than this part of a large tier
    std::uint32_t share_ = kWhole / 2;
    std::array<RecentKeys, 2> gone_;  // newcomers, and blocks that were asked for again
};

}  // namespace kvfix
