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
      ages_(policy == TierPolicy::all ? 0 : slots, kSampledPositions),
      shadows_(policy == TierPolicy::all ? 0 : slots / kSampledPositions) {}

TierAdmission::Warmth TierAdmission::warmth(std::uint32_t known, std::uint32_t blocks) {
    const std::uint64_t percent = blocks == 0 ? 0 : std::uint64_t{known} * 100 / blocks;
    if (percent < 15) {
        return Warmth::cold;
    }
    return percent < 60 ? Warmth::partly : Warmth::mostly;
}

void TierAdmission::asked(std::uint64_t key, std::uint32_t position, bool before, Warmth warmth, bool elsewhere) {
    if (!is_adaptive()) {
        return;
    }
    history_.note(key);
    ++asked_;
    if (position % kSampledPositions != 0) {
        return;
    }
    const BlockKind kind_of = kind(before, warmth);
    shadows_.asked(key, kind_of, elsewhere, asked_, ages_,
                   [&](std::size_t rule, BlockKind victim, std::uint64_t since) {
                       return takes_by(static_cast<Rule>(rule), before, warmth, victim, since);
                   });
    ages_.asked(key, kind_of, elsewhere, asked_);
    if (++sampled_ == round_) {
        end_round();
    }
}

bool TierAdmission::takes_by(Rule rule, bool before, Warmth warmth, BlockKind victim, std::uint64_t since) const {
    switch (rule) {
        case known:
            return before || warmth == Warmth::mostly;
        case worthier:
            return ages_.worth(kind(before, warmth), 0) >= ages_.worth(victim, asked_ - since);
        default:
            return true;
    }
}

// A rule that declines blocks must find a thirty-second more: the sample is small, and what is declined is lost.
void TierAdmission::end_round() {
    ages_.learn(asked_);
    rule_ = everything;
    for (const Rule rule : {known, worthier}) {
        if (shadows_.found(rule) * 32 > shadows_.found(rule_) * 33) {
            rule_ = rule;
        }
    }
    shadows_.fade();
    sampled_ = 0;
}

}  // namespace kvfix
