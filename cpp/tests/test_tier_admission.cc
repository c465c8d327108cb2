// TierAdmission: what it learns of blocks, and which of them it lets push others out. Its answers are compared with a
// model in tests/core/test_tier_admission.py.
#include "core/tier_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "tests/steps_of.h"

namespace kvfix {
namespace {

using Warmth = TierAdmission::Warmth;

// Each shadow of such a tier holds 64 keys, and every 256 sampled blocks it decides anew.
constexpr std::uint32_t kSlots = 512;
constexpr std::uint32_t kSampled = 0;  // a position that the policy looks at

class TierAdmissionTest : public ::testing::Test {
  protected:
    // Spread as a hash would spread them.
    static std::uint64_t key(std::uint64_t number) { return (number + 1) * 0x9e3779b97f4a7c15; }
    void ask(std::uint64_t number, bool elsewhere = false) {
        const bool before = admission.knows(key(number));
        admission.asked(key(number), kSampled, before, before ? Warmth::mostly : Warmth::cold, elsewhere);
    }
    // Twice as many blocks as a shadow holds come back in turn.
    void circle(int times, bool elsewhere = false) {
        for (int time = 0; time < times; ++time) {
            for (std::uint64_t number = 0; number < 128; ++number) {
                ask(number, elsewhere);
            }
        }
    }
    // Whether a new block may push out one that was asked for this long ago.
    bool takes_new(std::uint64_t age) const {
        return admission.takes(false, Warmth::cold, TierAdmission::kind(true, Warmth::mostly), admission.now() - age);
    }

    TierAdmission admission{TierPolicy::adaptive, kSlots};
};

TEST_F(TierAdmissionTest, ANewBlockMayPushOthersOutUntilMoreWouldBeFoundWithoutIt) {
    EXPECT_TRUE(takes_new(100));
    circle(10);
    EXPECT_FALSE(takes_new(100));
}

TEST_F(TierAdmissionTest, WhatIsFoundElsewhereSaysNothingForOrAgainst) {
    circle(10, true);
    EXPECT_TRUE(takes_new(0));
}

TEST_F(TierAdmissionTest, ABlockOfAKindThatComesBackIsWorthMoreThanOneOfAKindThatDoesNot) {
    std::uint64_t once = 1'000'000;
    for (int time = 0; time < 40; ++time) {
        for (std::uint64_t hot = 0; hot < 30; ++hot) {
            ask(hot);
            ask(++once);
        }
    }
    EXPECT_GT(admission.going(TierAdmission::kind(true, Warmth::mostly), admission.now()).worth,
              4 * admission.going(TierAdmission::kind(false, Warmth::cold), admission.now()).worth);
}

TEST_F(TierAdmissionTest, ABlockIsNeverWorthMoreBecauseItHasWaited) {
    circle(10);
    const BlockKind kind = TierAdmission::kind(true, Warmth::mostly);
    for (std::uint64_t age = 1; age < admission.now(); ++age) {
        ASSERT_LE(admission.going(kind, admission.now() - age).worth,
                  admission.going(kind, admission.now() - age + 1).worth);
    }
}

TEST_F(TierAdmissionTest, RemembersWhatWasAskedFor) {
    EXPECT_FALSE(admission.knows(key(1)));
    ask(1);
    EXPECT_TRUE(admission.knows(key(1)));
}

TEST_F(TierAdmissionTest, APromptIsAsWarmAsItsKnownPartIsLong) {
    EXPECT_EQ(TierAdmission::warmth(0, 0), Warmth::cold);
    EXPECT_EQ(TierAdmission::warmth(14, 100), Warmth::cold);
    EXPECT_EQ(TierAdmission::warmth(15, 100), Warmth::partly);
    EXPECT_EQ(TierAdmission::warmth(60, 100), Warmth::mostly);
}

// Somebody's claim waits for it: the end of a round looks at no more than what has moved on since.
TEST_F(TierAdmissionTest, NoBlockThatIsAskedForPaysForAllThatWait) {
    constexpr std::uint32_t kMany = 1U << 14;
    TierAdmission large(TierPolicy::adaptive, kMany);
    std::uint64_t most = 0;
    for (std::uint64_t number = 0; number < 20ULL * kMany; ++number) {
        most =
            std::max(most, testing::steps_of([&] { large.asked(key(number), kSampled, false, Warmth::cold, false); }));
    }
    EXPECT_LE(most, 2000U);
    EXPECT_GE(most, 38U) << "it counts something";
}

}  // namespace
}  // namespace kvfix
