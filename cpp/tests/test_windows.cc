// Several attention windows: blocks that nothing will read again are freed, and every window must be able to serve what
// is reused.
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::Manager;
using testing::message_of;
using testing::request;
using testing::Tokens;
using testing::tokens;

constexpr std::uint32_t kSmall = 8;
constexpr std::uint32_t kLarge = 32;

BlockManagerConfig two_windows(std::uint32_t blocks_small, std::uint32_t blocks_large) {
    BlockManagerConfig out = config(1);
    out.windows = {{.window_size = kSmall, .blocks_primary = blocks_small, .blocks_host = 0},
                   {.window_size = kLarge, .blocks_primary = blocks_large, .blocks_host = 0}};
    return out;
}

TEST(Windows, BlocksThatLeftTheWindowComeBackAsTheSequenceGrows) {
    Manager manager(two_windows(6, 12));
    manager.add_sequence(request(1, tokens(16, 1000)));
    EXPECT_EQ(manager.primary().owned, 4U);
    manager.grow(1, 1, 16);  // position 16 does not see tokens before 16 - 8
    const std::vector<std::int64_t> ids = manager.ids(1, kSmall);
    ASSERT_EQ(ids.size(), 5U);
    EXPECT_EQ(ids[0], -1);
    EXPECT_EQ(ids[1], -1);
    EXPECT_NE(ids[2], -1);
    EXPECT_NE(manager.ids(1, kLarge)[0], -1);
    EXPECT_EQ(manager.primary().owned, 3U);
    manager.check_invariants();
}

TEST(Windows, ReservingPositionsLetsNothingLeave) {
    Manager manager(two_windows(8, 12));
    manager.add_sequence(request(1, tokens(16, 1000)));
    manager.grow(1, 8);
    manager.grow(1, 1);
    EXPECT_EQ(std::ranges::count(manager.ids(1, kSmall), -1), 0) << "prefill has yet to read them";
    manager.store_context_blocks(1, 12);
    EXPECT_EQ(std::ranges::count(manager.ids(1, kSmall), -1), 1);
    manager.remove(1);
    EXPECT_EQ(manager.reusable(tokens(17, 1000)), 12U);
}

TEST(Windows, ASequenceOfAnyLengthFitsItsWindow) {
    Manager manager(two_windows(4, 10));
    manager.add_sequence(request(1, tokens(8, 1000)));
    for (std::uint32_t length = 8; length < 1008; ++length) {
        manager.grow(1, 1, length);
    }
    EXPECT_LE(manager.primary().owned, 4U);
    manager.check_invariants();
}

TEST(Windows, ReuseIsWhatEveryWindowCanServe) {
    Manager manager(two_windows(12, 4));
    manager.cache(1, tokens(16, 1000));
    EXPECT_EQ(manager.reusable(tokens(17, 1000)), 16U);
    manager.add_sequence(request(2, tokens(8, 9000)));  // needs two slots of the large window and evicts there
    EXPECT_LT(manager.reusable(tokens(17, 1000)), 16U);
}

TEST(Windows, EvictingWhatLiesOutsideCostsNoReuse) {
    Manager manager(two_windows(4, 12));
    manager.cache(1, tokens(16, 1000));
    manager.add_sequence(request(2, tokens(8, 9000)));  // evicts the two blocks that the small window had left
    EXPECT_EQ(manager.reusable(tokens(17, 1000)), 16U);
    manager.forget(2);
    const Admission admission = manager.add_sequence(request(3, tokens(17, 1000)));
    EXPECT_EQ(admission.tokens_reused, 16U);
    manager.check_invariants();
}

TEST(Windows, BlocksOutsideTheWindowAreMatchedAndNotHeld) {
    Manager manager(two_windows(8, 12));
    manager.cache(1, tokens(16, 1000));
    const Admission admission = manager.add_sequence(request(2, tokens(17, 1000)));
    EXPECT_EQ(admission.tokens_reused, 16U);
    EXPECT_EQ(manager.ids(2, kSmall)[0], -1);
    EXPECT_EQ(manager.ids(2, kSmall)[1], -1);
    EXPECT_NE(manager.ids(2, kSmall)[2], -1);
    EXPECT_NE(manager.ids(2, kLarge)[0], -1);
}

TEST(Windows, BlocksThatLeaveAreStoredOnTheirWay) {
    Manager manager(two_windows(8, 16));
    manager.add_sequence(request(1, tokens(16, 1000)));
    manager.store_context_blocks(1, 16);
    for (std::uint32_t length = 16; length < 32; ++length) {
        manager.grow(1, Tokens{1000 + static_cast<TokenId>(length)}, length);
    }
    manager.remove(1, 32);
    EXPECT_GE(manager.reusable(tokens(33, 1000)), 28U);
}

TEST(Windows, OutOfBlocksNamesTheWindow) {
    Manager manager(two_windows(3, 12));
    try {
        manager.add_sequence(request(1, tokens(16, 1000)));
        FAIL() << "four blocks fit three slots";
    } catch (const OutOfBlocks& error) {
        EXPECT_EQ(error.window_size, kSmall);
    }
}

TEST(Windows, AWindowMustBeNamedWhereThereAreSeveral) {
    Manager manager(two_windows(8, 12));
    manager.add_sequence(request(1, tokens(8, 1000)));
    EXPECT_THROW(manager.ids(1), std::invalid_argument);
    EXPECT_THROW(manager.ids(1, 9U), std::invalid_argument);
}

TEST(Windows, OffsetsComeForEveryWindow) {
    Manager manager(two_windows(6, 12));
    manager.add_sequence(request(1, tokens(16, 1000)));
    manager.grow(1, 1, 16);
    constexpr std::int32_t kUntouched = -7;
    constexpr std::size_t kBlocks = 6;
    constexpr std::size_t kRows = 2;
    std::vector<std::int32_t> table(2 * kRows * 2 * kBlocks, kUntouched);
    const RequestId id = 1;
    manager.copy_batch_block_offsets({table.data(), 2, kRows, kBlocks}, {&id, 1}, 1, 1, {.scale = 2, .v_offset = 1});
    for (std::size_t window = 0; window < 2; ++window) {
        const std::int32_t* skipped = &table[window * kRows * 2 * kBlocks];
        const std::int32_t* k = skipped + 2 * kBlocks;
        const std::int32_t* v = k + kBlocks;
        EXPECT_EQ(std::count(skipped, k, kUntouched), static_cast<std::ptrdiff_t>(2 * kBlocks)) << "row 0 is not ours";
        EXPECT_EQ(k[kBlocks - 1], kUntouched) << "beyond the sequence's blocks";
        EXPECT_EQ(k[0] == -1, window == 0) << "block 0 has left the small window";
        EXPECT_EQ(v[0] == -1, window == 0);
        EXPECT_EQ(k[4] % 2, 0);
        EXPECT_EQ(v[4], k[4] + 1);
    }
}

TEST(Windows, RewindingStopsAtWhatHasLeft) {
    Manager manager(two_windows(8, 16));
    manager.add_sequence(request(1, tokens(8, 1000)));
    manager.grow(1, 12, 8);
    manager.rewind_kv_cache(1, 12);
    manager.grow(1, 12, 8);
    manager.grow(1, 1, 20);  // length 20: three blocks leave
    const std::uint64_t before = manager.digest();
    const std::string why = message_of<std::invalid_argument>([&] { manager.rewind_kv_cache(1, 13); });
    EXPECT_NE(why.find("window"), std::string::npos) << why;
    EXPECT_EQ(manager.digest(), before);
    manager.rewind_kv_cache(1, 1);
    manager.check_invariants();
}

}  // namespace
}  // namespace kvfix
