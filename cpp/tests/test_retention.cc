// Priorities and durations: which blocks stay longest, until when, and which are worth a host slot.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kept_at;
using testing::Manager;
using testing::request;
using testing::RequestOptions;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(4, 1000);
const Tokens kY = tokens(4, 2000);
const Tokens kZ = tokens(4, 3000);

bool cached(Manager& manager, const Tokens& prompt) { return manager.reusable(joined(prompt, {1})) == prompt.size(); }

// Admits one block more than is free, so something cached has to go.
void evict_one(Manager& manager, RequestId id) {
    const auto blocks = static_cast<std::uint32_t>(manager.primary().free) + 1;
    manager.add_sequence(request(id, tokens(blocks * 4, 50'000)));
    manager.forget(id);
}

TEST(Retention, TheLowestPriorityGoesFirstThenTheLeastRecentlyUsed) {
    Manager manager(config(3));
    manager.cache(1, kX, kept_at(50));
    manager.cache(2, kY, kept_at(40));
    manager.cache(3, kZ, kept_at(40));
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY) && cached(manager, kZ));
    manager.add_sequence(request(11, tokens(4, 60'000)));
    evict_one(manager, 12);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kZ));
}

TEST(Retention, UsingABlockMakesItTheNewest) {
    Manager manager(config(3));
    manager.cache(1, kX);
    manager.cache(2, kY);
    manager.add_sequence(request(3, joined(kX, {1})));
    manager.remove(3);
    manager.add_sequence(request(4, tokens(8, 60'000)));
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
}

TEST(Retention, LeavesGoBeforeTheirParents) {
    Manager manager(config(3));
    manager.cache(1, joined(kX, kY),
                  {.retention = Retention{.ranges = {{0, 4, 10, {}}, {4, 8, 90, {}}}, .decode_duration_ms = {}}});
    manager.cache(2, kZ, kept_at(95));
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX)) << "a parent does not go before its child, whatever its priority";
    EXPECT_FALSE(cached(manager, joined(kX, kY)));
    EXPECT_TRUE(cached(manager, kZ));
}

TEST(Retention, ADurationEndsAtItsMillisecond) {
    Manager manager(config(2));
    manager.advance_time(100);
    manager.cache(1, kX, kept_at(90, 50));
    manager.cache(2, kY, kept_at(60));
    manager.advance_time(149);
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
    manager.cache(3, kY, kept_at(60));
    manager.advance_time(150);
    evict_one(manager, 11);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kY)) << "demoted to 35";
}

TEST(Retention, TheClockStartsWhenTheBlockBecomesCached) {
    Manager manager(config(2));
    manager.add_sequence(request(1, kX, kept_at(90, 50)));
    manager.store_context_blocks(1, 4);
    manager.advance_time(1000);
    manager.remove(1);
    manager.cache(2, kY, kept_at(60));
    manager.advance_time(1049);
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
}

TEST(Retention, AClaimStopsTheClock) {
    Manager manager(config(3));
    manager.cache(1, kX, kept_at(90, 50));
    manager.add_sequence(request(2, joined(kX, {1})));
    manager.advance_time(1000);
    manager.remove(2);
    manager.advance_time(1049);
    manager.cache(3, kY, kept_at(60));
    manager.add_sequence(request(4, tokens(4, 60'000)));
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX)) << "its fifty milliseconds began anew";
}

TEST(Retention, AClaimGivesTheBlockTheNewRequestsPriority) {
    Manager manager(config(3));
    manager.cache(1, kX, kept_at(10));
    manager.cache(2, kY, kept_at(20));
    manager.add_sequence(request(3, joined(kX, {1}), kept_at(80)));
    manager.forget(3);
    manager.add_sequence(request(4, tokens(4, 60'000)));
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
}

TEST(Retention, DecodeBlocksHaveTheirOwnPriority) {
    Manager manager(config(2));
    RequestOptions options = kept_at(90);
    options.retention->decode_priority = 5;
    manager.add_sequence(request(1, kX, options));
    manager.store_context_blocks(1, 4);
    manager.grow(1, kY);
    manager.remove(1, 8);
    ASSERT_TRUE(cached(manager, joined(kX, kY)));
    evict_one(manager, 10);
    EXPECT_TRUE(cached(manager, kX));
    manager.check_invariants();
}

TEST(Retention, ADurationOutlivesNoBlock) {
    Manager manager(config(2));
    for (std::int64_t now_ms = 0; now_ms < 100; ++now_ms) {
        manager.advance_time(now_ms);
        const auto id = static_cast<RequestId>(now_ms + 1);
        manager.cache(id, tokens(8, static_cast<TokenId>(now_ms * 100)), kept_at(90, 5));
        manager.check_invariants();
    }
    manager.reset_reuse_state();
    manager.advance_time(1000);
    EXPECT_EQ(manager.primary().free, 2U);
}

TEST(Retention, TimeDoesNotRunBackwards) {
    Manager manager(config(2));
    manager.advance_time(100);
    manager.advance_time(100);
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.advance_time(99), std::invalid_argument);
    EXPECT_EQ(manager.digest(), before);
}

}  // namespace
}  // namespace kvfix
