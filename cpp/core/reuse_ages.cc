#include "core/reuse_ages.h"

#include <algorithm>
#include <bit>

#include "core/steps.h"

namespace kvfix {
namespace {

constexpr std::uint64_t kOne = 256;  // a block, in counts that fade
constexpr unsigned kShareBits = 20;  // of chances
constexpr unsigned kWorthBits = 32;
constexpr std::uint64_t kHorizon = 2048;  // units: sixteen times the tier

// In units.
std::uint64_t begin_of(std::uint32_t bucket) {
    return bucket == 0 ? 0 : std::uint64_t{4 + (bucket - 1) % 4} << ((bucket - 1) / 4);
}

// In units. The first bucket is 4 wide, then four are 1 wide each, four 2, four 4.
std::uint64_t width(std::uint32_t bucket) { return bucket == 0 ? 4 : std::uint64_t{1} << ((bucket - 1) / 4); }

}  // namespace

ReuseAges::ReuseAges(std::uint32_t slots, std::uint32_t sampled) : unit_(std::max<std::uint64_t>(slots / 128, 1)) {
    last_.reserve(kHorizon * unit_ / sampled);
}

std::uint32_t ReuseAges::bucket(std::uint64_t age) const {
    const std::uint64_t units = age / unit_;
    if (units < 4) {
        return 0;
    }
    const auto doublings = static_cast<std::uint32_t>(std::bit_width(units)) - 3;
    const auto quarter = static_cast<std::uint32_t>(units >> doublings & 3U);
    return std::min(1 + 4 * doublings + quarter, kBuckets - 1);
}

void ReuseAges::asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now) {
    forget_old(now);
    turn_ = turn_ + 1 == kBuckets ? 1 : turn_ + 1;
    move_into(turn_, now);
    const auto [place, is_new] = last_.try_emplace(key, 0);
    if (!is_new) {
        Waiting& before = waiting_[place->second - forgotten_];
        before.is_asked_again = true;
        waited_[before.kind][before.bucket] -= kOne;
        (elsewhere ? left_ : reused_)[before.kind][bucket(now - before.since)] += kOne;
    }
    place->second = forgotten_ + waiting_.size();
    waiting_.push_back({.key = key, .since = now, .kind = kind, .is_asked_again = false});
    waited_[kind][0] += kOne;
}

void ReuseAges::forget_old(std::uint64_t now) {
    while (!waiting_.empty() && now - waiting_.front().since > kHorizon * unit_) {
        const Waiting& oldest = waiting_.front();
        if (!oldest.is_asked_again) {
            waited_[oldest.kind][oldest.bucket] -= kOne;
            left_[oldest.kind][kBuckets - 1] += kOne;
            last_.erase(oldest.key);
        }
        waiting_.pop_front();
        ++forgotten_;
    }
}

// Those that have become old enough for this bucket, of those that are counted in the one before.
void ReuseAges::move_into(std::uint32_t bucket, std::uint64_t now) {
    std::uint64_t& at = too_young_[bucket];
    const std::uint64_t end = bucket == 1 ? forgotten_ + waiting_.size() : too_young_[bucket - 1];
    for (at = std::max(at, forgotten_); at < end; ++at) {
        KVFIX_STEP();
        Waiting& one = waiting_[at - forgotten_];
        if (now - one.since < begin_of(bucket) * unit_) {
            return;
        }
        one.bucket = static_cast<std::uint8_t>(bucket);
        if (!one.is_asked_again) {
            waited_[one.kind][bucket - 1] -= kOne;
            waited_[one.kind][bucket] += kOne;
        }
    }
}

// Blocks that were seen to wait through each bucket, or to be found in it. Those that were seen no longer count half.
ReuseAges::Counts ReuseAges::at_risk() const {
    Counts out{};
    for (std::uint32_t kind = 0; kind < kBlockKinds; ++kind) {
        std::uint64_t longer = 0;
        for (std::uint32_t at = kBuckets; at-- > 0;) {
            const std::uint64_t left = left_[kind][at] + waited_[kind][at];
            longer += reused_[kind][at];
            out[kind][at] = longer + left / 2;
            longer += left;
        }
    }
    return out;
}

void ReuseAges::learn(std::uint64_t now) {
    forget_old(now);
    for (std::uint32_t bucket = 1; bucket < kBuckets; ++bucket) {
        move_into(bucket, now);
    }
    const Counts risked = at_risk();
    std::array<std::uint64_t, kBuckets> chance_of_any{};
    for (std::uint32_t at = 0; at < kBuckets; ++at) {
        std::uint64_t reused = 0;
        std::uint64_t all = kOne;
        for (std::uint32_t kind = 0; kind < kBlockKinds; ++kind) {
            reused += reused_[kind][at];
            all += risked[kind][at];
        }
        chance_of_any[at] = (reused << kShareBits) / all;
    }
    for (std::uint32_t kind = 0; kind < kBlockKinds; ++kind) {
        // Of a kind that was hardly seen, what holds for any: as if one more block had been.
        const auto chance = [&](std::uint32_t at) {
            return ((reused_[kind][at] << kShareBits) + kOne * chance_of_any[at]) / (risked[kind][at] + kOne);
        };
        for (std::uint32_t from = 0; from < kBuckets; ++from) {
            std::uint64_t waits = std::uint64_t{1} << kShareBits;
            std::uint64_t found = 0;
            std::uint64_t time = 0;
            std::uint64_t best = 0;
            for (std::uint32_t at = from; at < kBuckets; ++at) {
                const std::uint64_t now_found = waits * chance(at) >> kShareBits;
                found += now_found;
                time += (waits - now_found / 2) * width(at);
                waits -= now_found;
                best = std::max(best, (found << kWorthBits) / time);
            }
            worth_[kind][from] = best;
            least_worth_[kind][from] = from == 0 ? best : std::min(least_worth_[kind][from - 1], best);
        }
    }
    for (Counts* counts : {&reused_, &left_}) {
        for (auto& of_kind : *counts) {
            for (std::uint64_t& count : of_kind) {
                count -= count / 32;
            }
        }
    }
}

}  // namespace kvfix
