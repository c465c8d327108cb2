// Blocks that are named while a sequence lives, and forgotten by name.
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::hashes_of;
using testing::joined;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);

TEST(LiveStore, NamesBlocksAsAPromptOfTheSameTokensWould) {
    Manager manager(config(8, 4));
    manager.add_sequence(request(1, tokens(6, 1000), {.lora_id = 3, .salt = "me"}));
    EXPECT_EQ(manager.commit_and_get_block_hashes(1).size(), 1U);
    manager.grow(1, tokens(3, 1006));
    const auto whole = request(2, tokens(8, 1000), {.lora_id = 3, .salt = "me"});
    EXPECT_EQ(manager.commit_and_get_block_hashes(1), hashes_of(*whole));
    manager.rewind_kv_cache(1, 3);
    manager.grow(1, tokens(3, 7));
    EXPECT_NE(manager.commit_and_get_block_hashes(1), hashes_of(*whole)) << "other tokens came in their place";
    manager.suspend_sequence(1);
    EXPECT_EQ(manager.commit_and_get_block_hashes(1).size(), 2U);
    EXPECT_THROW(manager.commit_and_get_block_hashes(9), UnknownRequest);
    manager.check_invariants();
}

TEST(Truncation, ForgetsTheRestOfAConversationAndNothingOfAnother) {
    Manager manager(config(8));
    manager.cache(1, joined(kX, tokens(6, 3000)));
    manager.cache(2, joined(kX, {1, 2, 3, 4}));
    const auto conversation = request(3, joined(kX, tokens(6, 3000)));
    EXPECT_EQ(manager.truncate_blocks(conversation, 13), 0U) << "the last block holds a token that is kept";
    EXPECT_EQ(manager.truncate_blocks(conversation, 9), 1U);
    EXPECT_EQ(manager.truncate_blocks(conversation, 0), 1U) << "the other one goes on below the rest";
    EXPECT_EQ(manager.reusable(joined(kX, {1, 2, 3, 4, 5})), 12U);
    EXPECT_THROW(manager.truncate_blocks(conversation, 15), std::invalid_argument);
    manager.check_invariants();
}

TEST(Truncation, StopsAtWhatIsInUse) {
    Manager manager(config(8));
    manager.cache(1, kX);
    manager.add_sequence(request(2, joined(kX, {1})));
    EXPECT_EQ(manager.truncate_blocks(request(3, kX), 0), 0U);
    manager.forget(2);
    EXPECT_EQ(manager.truncate_blocks(request(3, kX), 0), 2U);
    EXPECT_EQ(manager.primary().free, 8U);
}

}  // namespace
}  // namespace kvfix
