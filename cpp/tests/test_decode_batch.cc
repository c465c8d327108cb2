// Sequences that generate together: a batch does what add_tokens() does for them, and never trusts an old look-up.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/errors.h"
#include "core/grow.h"
#include "core/pause_point.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;

// Two managers that serve the requests 1 and 2.
struct Two {
    Manager batched{config(16)};
    Manager listed{config(16)};

    Two() {
        for (Manager* manager : {&batched, &listed}) {
            manager->add_sequence(request(1, tokens(5, 0)));
            manager->add_sequence(request(2, tokens(kTokensPerBlock, 500)));
        }
    }
    void expect_equal() {
        EXPECT_EQ(batched.digest(), listed.digest());
        batched.check_invariants();
    }
};

TEST(DecodeBatch, DoesWhatGrowthByIdsDoes) {
    Two two;
    grow::DecodeBatch batch = two.batched.decode_batch({2, 1});
    const std::vector<RequestId> ids{2, 1};
    const std::vector<std::uint32_t> ones{1, 1};
    for (std::uint32_t step = 0; step < 2 * kTokensPerBlock; ++step) {
        const Tokens values{static_cast<TokenId>(7 + step), static_cast<TokenId>(90 + step)};
        const std::vector<std::uint32_t> lengths{kTokensPerBlock + step, 5 + step};
        if (step % 3 == 0) {
            two.batched.add_tokens(batch, values, true);
        } else {
            ASSERT_TRUE(two.batched.add_few_tokens(batch, values, true));
        }
        two.listed.add_tokens(ids, ones, values, lengths);
    }
    two.expect_equal();
}

TEST(DecodeBatch, SaysThatNothingIsComputedUnlessItIs) {
    Two two;
    grow::DecodeBatch batch = two.batched.decode_batch({1, 2});
    two.batched.add_tokens(batch, std::nullopt, false);
    two.listed.add_tokens(std::vector<RequestId>{1, 2}, std::vector<std::uint32_t>{1, 1}, std::nullopt);
    two.expect_equal();
}

// The ended sequence's memory serves the next request, which the batch must not take for its own.
TEST(DecodeBatch, FindsThatASequenceHasEnded) {
    Manager manager(config(16));
    manager.add_sequence(request(1, tokens(5, 0)));
    grow::DecodeBatch batch = manager.decode_batch({1});
    manager.forget(1);
    manager.add_sequence(request(2, tokens(5, 500)));
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.add_tokens(batch, std::nullopt, true), UnknownRequest);
    EXPECT_THROW(manager.add_few_tokens(batch, std::nullopt, true), UnknownRequest);
    EXPECT_EQ(manager.digest(), before);
    manager.add_sequence(request(1, tokens(3, 900)));
    manager.add_tokens(batch, std::nullopt, true);
    EXPECT_EQ(manager.get_token_count(1), 4U);
    EXPECT_EQ(manager.get_token_count(2), 5U);
}

TEST(DecodeBatch, GoesOnWhenOthersEnd) {
    Two two;
    grow::DecodeBatch batch = two.batched.decode_batch({2});
    two.batched.add_tokens(batch, std::nullopt, true);
    two.batched.forget(1);
    two.batched.add_tokens(batch, std::nullopt, true);
    EXPECT_EQ(two.batched.get_token_count(2), kTokensPerBlock + 2);
}

TEST(DecodeBatch, RefusesASequenceThatIsSuspended) {
    Manager manager(config(8, 8));
    manager.add_sequence(request(1, tokens(5, 0)));
    grow::DecodeBatch batch = manager.decode_batch({1});
    manager.suspend_sequence(1);
    EXPECT_THROW(manager.add_tokens(batch, std::nullopt, true), std::invalid_argument);
    EXPECT_THROW(manager.decode_batch({1}), std::invalid_argument);
}

TEST(DecodeBatch, RefusesIdsThatAreUnknownOrComeTwice) {
    Two two;
    EXPECT_THROW(two.batched.decode_batch({1, 7}), UnknownRequest);
    EXPECT_THROW(two.batched.decode_batch({1, 2, 1}), std::invalid_argument);
}

TEST(DecodeBatch, ChangesNothingWhereBlocksRunOut) {
    Manager manager(config(2));
    manager.add_sequence(request(1, tokens(kTokensPerBlock, 0)));
    manager.add_sequence(request(2, tokens(kTokensPerBlock, 500)));
    grow::DecodeBatch batch = manager.decode_batch({1, 2});
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.add_tokens(batch, Tokens{3, 4}, true), OutOfBlocks);
    EXPECT_EQ(manager.digest(), before);
}

TEST(DecodeBatch, RefusesValuesThatAreNotOneForEach) {
    Two two;
    grow::DecodeBatch batch = two.batched.decode_batch({1, 2});
    const std::uint64_t before = two.batched.digest();
    EXPECT_THROW(two.batched.add_tokens(batch, Tokens{3}, true), std::invalid_argument);
    EXPECT_THROW(two.batched.add_tokens(batch, Tokens{3, -4}, true), std::invalid_argument);
    EXPECT_EQ(two.batched.digest(), before);
}

TEST(DecodeBatch, IsNotShortWithManySequences) {
    const auto many = static_cast<std::uint32_t>(grow::kFew) + 1;
    Manager manager(config(many));
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < many; ++i) {
        manager.add_sequence(request(i, tokens(1, static_cast<TokenId>(i))));
        ids.push_back(i);
    }
    grow::DecodeBatch batch = manager.decode_batch(ids);
    EXPECT_FALSE(manager.add_few_tokens(batch, std::nullopt, true));
    ids.pop_back();
    grow::DecodeBatch fewer = manager.decode_batch(ids);
    EXPECT_TRUE(manager.add_few_tokens(fewer, std::nullopt, true));
}

TEST(DecodeBatch, DoesNotWaitForTheLockInAShortCall) {
    Two two;
    grow::DecodeBatch batch = two.batched.decode_batch({1});
    PausePoint inside("release.unowned");
    std::thread holder([&] { two.batched.forget(2); });
    inside.await_arrival();
    EXPECT_FALSE(two.batched.add_few_tokens(batch, std::nullopt, true));
    inside.release();
    holder.join();
    EXPECT_TRUE(two.batched.add_few_tokens(batch, std::nullopt, true));
    EXPECT_EQ(two.batched.get_token_count(1), 6U);
}

}  // namespace
}  // namespace kvfix
