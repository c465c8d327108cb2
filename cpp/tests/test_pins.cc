// Pins hold a slot in one tier until each of them has ended, whoever else wants it.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kSeed;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::message_of;
using testing::request;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);
const Tokens kY = tokens(8, 2000);

class Pins : public ::testing::Test {
  protected:
    std::vector<PinnedBlock> pin(const Tokens& prompt, std::optional<Tier> tier = std::nullopt) {
        std::vector<PinnedBlock> out;
        const auto hashes = testing::hashes_of(*request(1, prompt));
        for (const auto& found : manager.find_and_pin_blocks_by_hash(hashes, tier, true, std::nullopt)) {
            if (found) {
                out.push_back(*found);
            }
        }
        return out;
    }
    void unpin(const std::vector<PinnedBlock>& pinned) {
        for (const PinnedBlock& block : pinned) {
            manager.unpin_blocks_by_id({&block.block_id, 1}, block.tier);
        }
    }
    bool refused(std::vector<BlockId> ids, std::optional<Tier> tier = std::nullopt) {
        const std::uint64_t before = manager.digest();
        const bool thrown = !message_of<std::invalid_argument>([&] { manager.unpin_blocks_by_id(ids, tier); }).empty();
        EXPECT_TRUE(!thrown || manager.digest() == before) << "a refused unpin changed something";
        return thrown;
    }

    Manager manager{config(4, 4)};
};

TEST_F(Pins, APinnedPrimaryBlockIsNotEvicted) {
    manager.cache(1, kX);
    const auto pinned = pin(kX);
    ASSERT_EQ(pinned.size(), 2U);
    EXPECT_EQ(pinned[0].tier, Tier::primary);
    EXPECT_THROW(manager.add_sequence(request(2, tokens(12, 9000))), OutOfBlocks);
    manager.add_sequence(request(2, tokens(8, 9000)));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    unpin(pinned);
    manager.add_sequence(request(3, tokens(8, 8000)));
    manager.check_invariants();
}

TEST_F(Pins, APinnedHostBlockIsNotEvicted) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    const auto pinned = pin(kX);
    ASSERT_EQ(pinned.size(), 2U);
    EXPECT_EQ(pinned[0].tier, Tier::host);
    for (RequestId id = 10; id < 20; id += 2) {  // five prompts want the other two host slots
        manager.cache(id, tokens(8, static_cast<TokenId>(id * 1000)));
        manager.flush_primary(id + 1);
    }
    EXPECT_EQ(manager.analyze_prefix_reuse(request(3, joined(kX, {1}))).blocks_host, 2U);
    unpin(pinned);
    manager.check_invariants();
}

TEST_F(Pins, OnboardingAPinnedHostBlockCopiesItAndLeavesItsSlot) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    const auto pinned = pin(kX, Tier::host);
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
    const auto again = pin(kX, Tier::host);
    ASSERT_EQ(again.size(), 2U) << "redundant host copies go first, but not pinned ones";
    EXPECT_EQ(again[0].slot, pinned[0].slot);
    unpin(pinned);
    unpin(again);
    manager.check_invariants();
}

TEST_F(Pins, EveryPinMustBeEnded) {
    manager.cache(1, kX);
    const auto first = pin(kX);
    const auto second = pin(kX);
    unpin(first);
    EXPECT_THROW(manager.add_sequence(request(2, tokens(12, 9000))), OutOfBlocks) << "still pinned once";
    unpin(second);
    manager.add_sequence(request(2, tokens(12, 9000)));
}

TEST_F(Pins, UnpinningWhatIsNotPinnedIsRefused) {
    manager.cache(1, kX);
    const auto pinned = pin(kX);
    const BlockId id = pinned[0].block_id;
    EXPECT_TRUE(refused({id}, Tier::host));
    EXPECT_TRUE(refused({id, id})) << "once too often in one call";
    EXPECT_TRUE(refused({id, BlockId{99}}));
    unpin(pinned);
    EXPECT_TRUE(refused({id}));
    EXPECT_TRUE(refused({BlockId{~0ULL}}));
}

TEST_F(Pins, ABlockPinnedInBothTiersNeedsATier) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    const auto in_host = pin(kX, Tier::host);
    manager.add_sequence(request(3, joined(kX, {1})));
    manager.run_transfers();
    const auto in_primary = pin(kX, Tier::primary);
    ASSERT_EQ(in_primary.size(), 2U);
    const BlockId id = in_host[0].block_id;
    ASSERT_EQ(in_primary[0].block_id, id);
    EXPECT_TRUE(refused({id}));
    unpin(in_primary);
    EXPECT_FALSE(refused({id})) << "only one tier is left to mean";
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

TEST_F(Pins, AMissEndsAHashLookupUnlessTheCallerGoesOn) {
    manager.cache(1, kX);
    const auto hashes = testing::hashes_of(*request(1, kX));
    const std::vector<BlockHash> asked{hashes[0], {0, 4711}, hashes[1]};
    const auto stopped = manager.find_and_pin_blocks_by_hash(asked, std::nullopt, true, std::nullopt);
    EXPECT_TRUE(stopped[0] && !stopped[1] && !stopped[2]);
    const auto went_on = manager.find_and_pin_blocks_by_hash(asked, std::nullopt, false, std::nullopt);
    EXPECT_TRUE(went_on[0] && !went_on[1] && went_on[2]);
    EXPECT_EQ(went_on[2]->block_hash, hashes[1]);
}

TEST_F(Pins, AHashThatTwoBlocksShareIsAMiss) {
    BlockManagerConfig colliding = config(8);
    colliding.hash_bits = 1;
    Manager other(colliding);
    other.cache(1, kX);
    other.cache(2, kY);
    std::map<BlockHash, int> blocks;  // four, and two hashes
    for (const Tokens& prompt : {kX, kY}) {
        for (const BlockHash& hash : block_hashes(*request(1, prompt), BlockHasher(kSeed, 1), kTokensPerBlock)) {
            ++blocks[hash];
        }
    }
    for (const auto& [hash, sharing] : blocks) {
        const auto found = other.find_and_pin_blocks_by_hash({&hash, 1}, std::nullopt, true, std::nullopt).front();
        EXPECT_EQ(found.has_value(), sharing == 1) << sharing << " blocks";
    }
}

TEST_F(Pins, HashesAreKnownOfBlocksThatWereStoredBeforeAnybodyAsked) {
    manager.cache(1, kX);
    const auto hashes = testing::hashes_of(*request(1, kX));
    const auto all = [&] { return manager.find_and_pin_blocks_by_hash(hashes, std::nullopt, true, std::nullopt); };
    EXPECT_TRUE(all()[0] && all()[1]);
    manager.check_invariants();
    manager.cache(2, kY);
    EXPECT_TRUE(
        manager.find_and_pin_blocks_by_hash(testing::hashes_of(*request(1, kY)), std::nullopt, true, std::nullopt)[1]);
    manager.reset_reuse_state();
    EXPECT_FALSE(all()[0]);
    manager.check_invariants();
}

TEST_F(Pins, HalfAHashIsRefused) {
    const BlockHash half{testing::hashes_of(*request(1, kX))[0].first, 0};
    EXPECT_THROW(manager.find_and_pin_blocks_by_hash({&half, 1}, std::nullopt, true, std::nullopt),
                 std::invalid_argument);
}

TEST_F(Pins, ALookupThatCarriesItsRequestComparesContent) {
    BlockManagerConfig colliding = config(8);
    colliding.hash_bits = 1;
    Manager other(colliding);
    other.cache(1, kX);
    other.cache(2, kY);
    for (const Tokens& prompt : {kX, kY}) {
        const RequestPtr whose = request(3, joined(prompt, {1}));
        const auto hashes = block_hashes(*whose, BlockHasher(kSeed, 1), kTokensPerBlock);
        const auto found = other.find_and_pin_blocks_by_hash(hashes, std::nullopt, true, std::nullopt, whose);
        other.add_sequence(whose);
        const auto ids = other.ids(3);
        ASSERT_TRUE(found[0] && found[1]);
        EXPECT_EQ(static_cast<std::int64_t>(found[0]->block_id), ids[0]);
        EXPECT_EQ(static_cast<std::int64_t>(found[1]->block_id), ids[1]);
        other.forget(3);
    }
}

TEST_F(Pins, ALookupWhoseHashesAreNotOfItsRequestIsRefused) {
    manager.cache(1, kX, {.salt = std::string("one")});
    const RequestPtr stranger = request(2, kX, {.salt = std::string("other")});
    const auto hashes = testing::hashes_of(*request(1, kX, {.salt = std::string("one")}));
    const std::uint64_t before = manager.digest();
    const auto ask = [&](std::span<const BlockHash> wanted, const RequestPtr& whose) {
        return manager.find_and_pin_blocks_by_hash(wanted, std::nullopt, true, std::nullopt, whose);
    };
    EXPECT_THROW(ask(hashes, stranger), std::invalid_argument);
    const RequestPtr owner = request(2, kX, {.salt = std::string("one")});
    const std::vector<BlockHash> backwards{hashes[1], hashes[0]};
    EXPECT_THROW(ask(backwards, owner), std::invalid_argument);
    EXPECT_EQ(manager.digest(), before);
    EXPECT_TRUE(ask(std::span(hashes).subspan(1), owner)[0]) << "some of the prompt's blocks, in their order";
    EXPECT_FALSE(ask(testing::hashes_of(*stranger), stranger)[0]) << "its own hashes, of blocks that are not here";
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
    manager.cache(1, kX);
    const auto pinned = pin(kX);
    manager.reset_reuse_state();
    EXPECT_EQ(manager.reusable(kX), 0U);
    EXPECT_EQ(manager.primary().owned, 2U);
    unpin(pinned);
    EXPECT_EQ(manager.primary().free, 4U);
    manager.check_invariants();
}

TEST_F(Pins, UnpinnedBlocksAreTheNewestOfTheirQueue) {
    manager.cache(1, kX);
    const auto pinned = pin(kX);
    manager.cache(2, kY);
    unpin(pinned);
    manager.add_sequence(request(3, tokens(4, 9000)));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.reusable(joined(kY, {1})), 4U) << "its last block was the oldest leaf";
}

}  // namespace
}  // namespace kvfix
