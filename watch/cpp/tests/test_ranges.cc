// Which memory is pinned, where allocations share the pieces in which the driver gives memory out.
#include <gtest/gtest.h>

#include "hostrace/ranges.h"

namespace hostrace {
namespace {

constexpr std::uintptr_t kPiece = std::uintptr_t{2} << 20;
constexpr std::uintptr_t kBegin = 1000 * kPiece;

TEST(Ranges, AnAddressIsInTheRangeThatHoldsIt) {
    Ranges ranges;
    ranges.add(kBegin + 4096, 4096);
    ranges.add(kBegin, 4096);
    EXPECT_EQ(ranges.find(kBegin + 4095).begin, kBegin);
    EXPECT_EQ(ranges.find(kBegin + 4096).begin, kBegin + 4096);
    EXPECT_TRUE(ranges.find(kBegin + 8192).empty());
    EXPECT_TRUE(ranges.find(kBegin - 1).empty());
}

TEST(Ranges, WhatWentIsForgottenAndItsNeighboursAreNot) {
    Ranges ranges;
    ranges.add(kBegin, 4096);
    ranges.add(kBegin + 4096, 2 * kPiece);
    ranges.add(kBegin + 4096 + 2 * kPiece, 4096);
    EXPECT_EQ(ranges.remove(kBegin + 4096).end, kBegin + 4096 + 2 * kPiece);
    EXPECT_TRUE(ranges.remove(kBegin + 4096).empty());
    EXPECT_TRUE(ranges.find(kBegin + kPiece).empty());
    EXPECT_FALSE(ranges.near(kBegin + kPiece));
    EXPECT_FALSE(ranges.find(kBegin).empty());
    EXPECT_FALSE(ranges.find(kBegin + 4096 + 2 * kPiece).empty());
    static_cast<void>(ranges.remove(kBegin));
    EXPECT_FALSE(ranges.near(kBegin));
}

TEST(Ranges, TheSameAddressAgainMayHaveAnotherSize) {
    Ranges ranges;
    ranges.add(kBegin, 4096);
    ranges.add(kBegin, 8192);
    EXPECT_EQ(ranges.find(kBegin + 8191).begin, kBegin);
    EXPECT_FALSE(ranges.remove(kBegin).empty());
    EXPECT_TRUE(ranges.find(kBegin).empty());
}

TEST(Ranges, AWordThatIsNoAddressIsInNone) {
    Ranges ranges;
    ranges.add(kBegin, 4096);
    for (const std::uintptr_t word : {std::uintptr_t{0}, ~std::uintptr_t{0}, std::uintptr_t{1} << 47}) {
        EXPECT_FALSE(ranges.near(word));
        EXPECT_TRUE(ranges.find(word).empty());
    }
}

}  // namespace
}  // namespace hostrace
