// add_few_tokens(): as add_tokens() where little is to be done and the lock is free, else nothing and no.
#include <gtest/gtest.h>

#include <optional>
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

constexpr auto kFew = static_cast<std::uint32_t>(grow::kFew);

bool grow_shortly(Manager& manager, RequestId id, std::uint32_t count) {
    return manager.add_few_tokens({&id, 1}, {&count, 1}, std::nullopt);
}

void expect_refusal(Manager& manager, RequestId id, std::uint32_t count) {
    const std::uint64_t before = manager.digest();
    EXPECT_FALSE(grow_shortly(manager, id, count));
    EXPECT_EQ(manager.digest(), before);
    manager.check_invariants();
}

TEST(ShortGrowth, DoesWhatGrowthDoes) {
    Manager one(config(8));
    Manager other(config(8));
    const RequestId id = 1;
    const std::uint32_t count = 6;
    const std::uint32_t computed = 5;
    const Tokens values = tokens(count, 50);
    for (Manager* manager : {&one, &other}) {
        manager->cache(9, tokens(12, 1000));
        manager->add_sequence(request(id, tokens(5, 0)));
    }
    EXPECT_TRUE(one.add_few_tokens({&id, 1}, {&count, 1}, values, {{&computed, 1}}));
    other.add_tokens({&id, 1}, {&count, 1}, values, {{&computed, 1}});
    EXPECT_EQ(one.digest(), other.digest());
    one.check_invariants();
}

TEST(ShortGrowth, RefusesWhatGrowthRefusesInTheSameWords) {
    Manager manager(config(2));
    manager.add_sequence(request(1, tokens(5, 0)));
    EXPECT_THROW(grow_shortly(manager, 1, 4), OutOfBlocks);
    EXPECT_THROW(grow_shortly(manager, 7, 1), UnknownRequest);
    EXPECT_EQ(manager.get_token_count(1), 5U);
}

TEST(ShortGrowth, IsNotForManyPositions) {
    Manager manager(config(kFew));
    manager.add_sequence(request(1, tokens(5, 0)));
    EXPECT_TRUE(grow_shortly(manager, 1, kFew));
    expect_refusal(manager, 1, kFew + 1);
}

TEST(ShortGrowth, IsNotForManySequences) {
    Manager manager(config(kFew + 1));
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i <= kFew; ++i) {
        manager.add_sequence(request(i, tokens(1, static_cast<TokenId>(i))));
        ids.push_back(i);
    }
    const std::vector<std::uint32_t> none(ids.size(), 0);
    EXPECT_FALSE(manager.add_few_tokens(ids, none, std::nullopt));
    EXPECT_TRUE(manager.add_few_tokens(std::span(ids).first(kFew), std::span(none).first(kFew), std::nullopt));
}

TEST(ShortGrowth, IsNotForManyBeams) {
    BlockManagerConfig wide = config(4 * kFew);
    wide.beam_width_max = kFew + 1;
    Manager manager(wide);
    manager.add_sequence(request(1, tokens(kTokensPerBlock, 0), {.beam_width = kFew + 1}));
    expect_refusal(manager, 1, 1);
}

TEST(ShortGrowth, IsNotForTwoTiersNorForWindows) {
    Manager tiers(config(4, 4));
    tiers.add_sequence(request(1, tokens(5, 0)));
    expect_refusal(tiers, 1, 1);
    BlockManagerConfig sliding = config(0);
    sliding.windows = {{.window_size = 8, .blocks_primary = 4, .blocks_host = 0}};
    Manager window(sliding);
    window.add_sequence(request(1, tokens(5, 0)));
    expect_refusal(window, 1, 1);
}

TEST(ShortGrowth, IsNotForAManagerWithAPromptInChunks) {
    Manager manager(config(8));
    manager.add_sequence(request(1, tokens(5, 0)));
    manager.add_sequence(request(2, tokens(12, 500)), 4);
    expect_refusal(manager, 1, 1);
}

TEST(ShortGrowth, EvictsLeavesButSearchesForNone) {
    Manager leaves(config(3));
    leaves.cache(9, tokens(2 * kTokensPerBlock, 1000));
    leaves.add_sequence(request(1, tokens(kTokensPerBlock, 0)));
    EXPECT_TRUE(grow_shortly(leaves, 1, 1));

    Manager parents(config(3));
    const Tokens prompt = tokens(2 * kTokensPerBlock, 1000);
    parents.add_sequence(request(9, prompt));
    parents.store_context_blocks(9, 2 * kTokensPerBlock);
    parents.add_sequence(request(1, tokens(kTokensPerBlock, 0)));
    const std::vector<BlockId> ids = parents.pin(9);
    parents.forget(9);
    parents.unpin_blocks_by_id(std::span(ids).first(1), std::nullopt);  // the parent waits in front of the leaf
    parents.unpin_blocks_by_id(std::span(ids).last(1), std::nullopt);
    expect_refusal(parents, 1, 1);
    parents.grow(1, 1);
    parents.check_invariants();
}

// The answer comes while another thread is inside, and growth that waits comes after it.
TEST(ShortGrowth, DoesNotWaitForTheLock) {
    Manager manager(config(8));
    manager.add_sequence(request(1, tokens(5, 0)));
    manager.add_sequence(request(2, tokens(5, 500)));
    PausePoint inside("release.unowned");
    std::thread holder([&] { manager.forget(2); });
    inside.await_arrival();
    EXPECT_FALSE(grow_shortly(manager, 1, 1));
    inside.release();
    holder.join();
    EXPECT_EQ(manager.get_token_count(1), 5U);
    EXPECT_TRUE(grow_shortly(manager, 1, 1));
}

}  // namespace
}  // namespace kvfix
