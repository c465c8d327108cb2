// TierAdmission: whether new blocks may push others out, and what it decides that by. Its answers are compared with a
// model in tests/core/test_tier_index.py.
#include "core/tier_admission.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvfix {
namespace {

// Both shadows of such a tier hold 42 to 84 keys, and every 64 sampled blocks it decides anew.
constexpr std::uint32_t kSlots = 512;
constexpr std::uint32_t kSampled = 0;  // a position that the policy looks at

class TierAdmissionTest : public ::testing::Test {
  protected:
    // Spread as a hash would spread them.
    bool ask(std::uint64_t number, bool elsewhere = false) {
        return admission.asked((number + 1) * 0x9e3779b97f4a7c15, kSampled, elsewhere, false);
    }
    // Thirty blocks come back again and again, and between two of them come three that never do.
    void flood(int times, bool elsewhere = false) {
        for (int time = 0; time < times; ++time) {
            for (std::uint64_t hot = 0; hot < 30; ++hot) {
                ask(hot, elsewhere);
                for (int i = 0; i < 3; ++i) {
                    ask(++once, elsewhere);
                }
            }
        }
    }

    TierAdmission admission{TierPolicy::adaptive, kSlots};
    std::uint64_t once = 1'000'000;
};

TEST_F(TierAdmissionTest, ANewBlockMayPushOthersOutUntilMoreWouldBeFoundWithoutIt) {
    EXPECT_TRUE(admission.takes_new());
    flood(4);
    EXPECT_FALSE(admission.takes_new());
}

TEST_F(TierAdmissionTest, WhereReuseComesSoonNewBlocksAreTakenAgain) {
    flood(4);
    for (int i = 0; i < 1000; ++i) {
        ask(++once);
        ask(once);
    }
    EXPECT_TRUE(admission.takes_new());
}

TEST_F(TierAdmissionTest, WhatIsFoundElsewhereSaysNothingForOrAgainst) {
    flood(8, true);
    EXPECT_TRUE(admission.takes_new());
}

TEST_F(TierAdmissionTest, SaysWhetherABlockWasAskedForBefore) {
    EXPECT_FALSE(ask(1));
    EXPECT_TRUE(ask(1));
    EXPECT_FALSE(ask(2));
}

}  // namespace
}  // namespace kvfix
