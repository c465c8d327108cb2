// RecentKeys: what it remembers, and for how long.
#include "core/recent_keys.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvfix {
namespace {

// Spread as a hash would spread them.
std::uint64_t key(std::uint64_t number) { return (number + 1) * 0x9e3779b97f4a7c15; }

TEST(RecentKeys, TheLastOnesAreThereAndThoseLongGoneAreNot) {
    constexpr std::uint64_t kKeys = 100;
    RecentKeys recent(kKeys);
    for (std::uint64_t number = 0; number < 5'000; ++number) {
        EXPECT_FALSE(recent.contains(key(number)));
        recent.note(key(number));
        for (std::uint64_t back = 0; back < kKeys && back <= number; ++back) {
            ASSERT_TRUE(recent.contains(key(number - back))) << back << " ago";
        }
        if (number >= 2 * kKeys) {
            ASSERT_FALSE(recent.contains(key(number - 2 * kKeys)));
        }
    }
}

TEST(RecentKeys, AKeyThatIsNotedAgainStays) {
    RecentKeys recent(10);
    for (std::uint64_t number = 1; number < 1'000; ++number) {
        recent.note(key(0));
        recent.note(key(number));
        ASSERT_TRUE(recent.contains(key(0)));
    }
}

TEST(RecentKeys, OfNoneItRemembersOne) {
    RecentKeys recent(0);
    recent.note(key(1));
    EXPECT_TRUE(recent.contains(key(1)));
}

TEST(RecentKeys, AKeyOfNoBitsIsAKey) {
    RecentKeys recent(4);
    EXPECT_FALSE(recent.contains(0));
    recent.note(0);
    EXPECT_TRUE(recent.contains(0));
}

}  // namespace
}  // namespace kvfix
