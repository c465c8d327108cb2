// Pins hold a slot in one tier until each of them has ended, whoever else wants it.
#include <gtest/gtest.h>

#include <set>
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

const Tokens kX = tokens(8, 1000);
const Tokens kY = tokens(8, 2000);

class Pins : public ::testing::Test {
  protected:
    bool refused(std::vector<BlockId> ids, std::optional<Tier> tier = std::nullopt) {
        const std::uint64_t before = manager.digest();
        const bool thrown = !message_of<std::invalid_argument>([&] { manager.unpin_blocks_by_id(ids, tier); }).empty();
        EXPECT_TRUE(!thrown || manager.digest() == before) << "a refused unpin changed something";
        return thrown;
    }

    Manager manager{config(4, 4)};
};

TEST_F(Pins, APinnedPrimaryBlockIsNotEvicted) {
    const auto x = manager.cache(1, kX);
    ASSERT_EQ(x.size(), 2U);
    EXPECT_EQ(manager.pin_blocks_by_id(x)[0].tier, Tier::primary);
    EXPECT_THROW(manager.add_sequence(request(2, tokens(12, 9000))), OutOfBlocks);
    manager.add_sequence(request(2, tokens(8, 9000)));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    manager.unpin_blocks_by_id(x, std::nullopt);
    manager.add_sequence(request(3, tokens(8, 8000)));
    manager.check_invariants();
}

TEST_F(Pins, APinnedHostBlockIsNotEvicted) {
    const auto x = manager.cache(1, kX);
    manager.flush_primary(2);
    EXPECT_EQ(manager.pin_blocks_by_id(x)[0].tier, Tier::host);
    for (RequestId id = 10; id < 20; id += 2) {  // five prompts want the other two host slots
        manager.cache(id, tokens(8, static_cast<TokenId>(id * 1000)));
        manager.flush_primary(id + 1);
    }
    EXPECT_EQ(manager.analyze_prefix_reuse(request(3, joined(kX, {1}))).blocks_host, 2U);
    manager.unpin_blocks_by_id(x, std::nullopt);
    manager.check_invariants();
}

TEST_F(Pins, OnboardingAPinnedHostBlockCopiesItAndLeavesItsSlot) {
    const auto x = manager.cache(1, kX);
    manager.flush_primary(2);
    const auto pinned = manager.pin_blocks_by_id(x);
    manager.add_sequence(request(3, joined(kX, {1})));
    const auto items = manager.run_transfers();
    ASSERT_EQ(items.size(), 2U);
    EXPECT_EQ(items[0].slot_src, pinned[0].slot);
    EXPECT_EQ(items[1].slot_src, pinned[1].slot);
    manager.remove(3);
    for (RequestId id = 10; id < 14; id += 2) {
        manager.cache(id, tokens(8, static_cast<TokenId>(id * 1000)));
        manager.flush_primary(id + 1);
    }
    const auto again = manager.pin_blocks_by_id(x);
    ASSERT_EQ(again[0].tier, Tier::host) << "redundant host copies go first, but not pinned ones";
    EXPECT_EQ(again[0].slot, pinned[0].slot);
    manager.unpin_blocks_by_id(x, Tier::host);
    manager.unpin_blocks_by_id(x, Tier::host);
    manager.check_invariants();
}

TEST_F(Pins, EveryPinMustBeEnded) {
    const auto x = manager.cache(1, kX);
    manager.pin_blocks_by_id(x);
    manager.pin_blocks_by_id(x);
    manager.unpin_blocks_by_id(x, std::nullopt);
    EXPECT_THROW(manager.add_sequence(request(2, tokens(12, 9000))), OutOfBlocks) << "still pinned once";
    manager.unpin_blocks_by_id(x, std::nullopt);
    manager.add_sequence(request(2, tokens(12, 9000)));
}

TEST_F(Pins, UnpinningWhatIsNotPinnedIsRefused) {
    const auto x = manager.cache(1, kX);
    manager.pin_blocks_by_id(x);
    const BlockId id = x[0];
    EXPECT_TRUE(refused({id}, Tier::host));
    EXPECT_TRUE(refused({id, id})) << "once too often in one call";
    EXPECT_TRUE(refused({id, BlockId{99}}));
    manager.unpin_blocks_by_id(x, std::nullopt);
    EXPECT_TRUE(refused({id}));
    EXPECT_TRUE(refused({BlockId{~0ULL}}));
}

TEST_F(Pins, ABlockPinnedInBothTiersNeedsATier) {
    const auto x = manager.cache(1, kX);
    manager.flush_primary(2);
    ASSERT_EQ(manager.pin_blocks_by_id(x)[0].tier, Tier::host);
    manager.add_sequence(request(3, joined(kX, {1})));
    manager.run_transfers();
    ASSERT_EQ(manager.pin_blocks_by_id(x)[0].tier, Tier::primary);
    EXPECT_TRUE(refused({x[0]}));
    manager.unpin_blocks_by_id(x, Tier::primary);
    EXPECT_FALSE(refused({x[0]})) << "only one tier is left to mean";
}

TEST_F(Pins, ByIdPrimaryIsPreferredAndOtherwiseHost) {
    manager.add_sequence(request(1, kX));
    manager.store_context_blocks(1, 8);
    const auto id = static_cast<BlockId>(manager.ids(1)[0]);
    const PinnedSlot primary = manager.pin_blocks_by_id({&id, 1}).front();
    EXPECT_EQ(primary.tier, Tier::primary);
    EXPECT_EQ(static_cast<std::int32_t>(primary.slot), manager.slots(1)[0]);
    manager.unpin_blocks_by_id({&id, 1}, std::nullopt);
    manager.remove(1);
    manager.flush_primary(2);
    EXPECT_EQ(manager.pin_blocks_by_id({&id, 1}).front().tier, Tier::host);
}

TEST_F(Pins, PinningByIdIsAllOrNothing) {
    manager.add_sequence(request(1, kX));
    const auto held = static_cast<BlockId>(manager.ids(1)[0]);
    const std::uint64_t before = manager.digest();
    for (const BlockId nothing : {BlockId{3}, BlockId{8}, BlockId{~0ULL}}) {
        const std::vector<BlockId> ids{held, nothing};
        EXPECT_THROW(manager.pin_blocks_by_id(ids), std::invalid_argument);
        EXPECT_EQ(manager.digest(), before);
    }
}

TEST_F(Pins, ASequenceMayEndWithItsBlocksPinned) {
    manager.add_sequence(request(1, tokens(6, 1000)));
    const std::vector<std::int32_t> slots = manager.slots(1);
    const auto ids = manager.remove_sequence(1, false, true, std::nullopt);
    ASSERT_EQ(ids.size(), 2U);
    EXPECT_EQ(manager.primary().owned, 2U) << "private, unowned, and kept for whoever pinned them";
    std::multiset<std::int32_t> pinned_slots;
    for (const PinnedSlot& slot : manager.pin_blocks_by_id(ids)) {
        pinned_slots.insert(static_cast<std::int32_t>(slot.slot));
    }
    EXPECT_EQ(pinned_slots, std::multiset<std::int32_t>(slots.begin(), slots.end()));
    manager.unpin_blocks_by_id(ids, std::nullopt);
    manager.unpin_blocks_by_id(ids, std::nullopt);
    EXPECT_EQ(manager.primary().free, 4U);
    manager.check_invariants();
}

TEST_F(Pins, APinnedBlockThatIsDroppedLivesUntilItsPinEnds) {
    const auto x = manager.cache(1, kX);
    manager.pin_blocks_by_id(x);
    manager.reset_reuse_state();
    EXPECT_EQ(manager.reusable(kX), 0U);
    EXPECT_EQ(manager.primary().owned, 2U);
    manager.unpin_blocks_by_id(x, std::nullopt);
    EXPECT_EQ(manager.primary().free, 4U);
    manager.check_invariants();
}

TEST_F(Pins, UnpinnedBlocksAreTheNewestOfTheirQueue) {
    const auto x = manager.cache(1, kX);
    manager.pin_blocks_by_id(x);
    manager.cache(2, kY);
    manager.unpin_blocks_by_id(x, std::nullopt);
    manager.add_sequence(request(3, tokens(4, 9000)));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.reusable(joined(kY, {1})), 4U) << "its last block was the oldest leaf";
}

}  // namespace
}  // namespace kvfix
