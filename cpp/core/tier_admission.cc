#include "core/tier_admission.h"

#include <algorithm>

namespace kvfix {
namespace {

// RecentKeys holds one to two times as many keys as asked for. Two thirds bring the average to one.
std::uint32_t two_thirds(std::uint64_t keys) { return static_cast<std::uint32_t>(keys * 2 / 3); }

}  // namespace

TierAdmission::TierAdmission(TierPolicy policy, std::uint32_t slots)
    : policy_(policy),
      round_(std::max(slots / kSampledPositions, kRoundMin)),
      history_(policy == TierPolicy::all ? 0 : two_thirds(std::uint64_t{slots} * 4)),
      shadow_of_all_(policy == TierPolicy::all ? 0 : two_thirds(slots / kSampledPositions)),
      shadow_of_known_(policy == TierPolicy::all ? 0 : two_thirds(slots / kSampledPositions)) {}

bool TierAdmission::asked(std::uint64_t key, std::uint32_t position, bool elsewhere, bool reused) {
    if (policy_ == TierPolicy::all) {
        return true;
    }
    const bool before = reused || history_.contains(key);
    history_.note(key);
    if (position % kSampledPositions != 0) {
        return before;
    }
    const bool is_in_known = shadow_of_known_.contains(key);
    if (!elsewhere) {
        found_in_all_ += shadow_of_all_.contains(key) ? 1 : 0;
        found_in_known_ += is_in_known ? 1 : 0;
    }
    shadow_of_all_.note(key);
    if (before || is_in_known) {
        shadow_of_known_.note(key);
    }
    if (++sampled_ == round_) {
        end_round();
    }
    return before;
}

void TierAdmission::end_round() {
    constexpr double kKept = 0.75;  // the weight of what earlier rounds found
    only_known_ = found_in_known_ > found_in_all_;
    found_in_all_ *= kKept;
    found_in_known_ *= kKept;
    sampled_ = 0;
}

}  // namespace kvfix
