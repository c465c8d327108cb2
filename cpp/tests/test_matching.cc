// Blocks that may be reused: content decides and never a hash, and the longest common prefix inside a block wins.
#include <gtest/gtest.h>

#include <set>

#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::Manager;
using testing::request;
using testing::RequestOptions;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);

// --------------------------------------------------------------------------------------------------------- identity

TEST(Matching, ContentOfDifferentIdentitiesIsNeverShared) {
    const std::vector<RequestOptions> identities{{},
                                                 {.lora_id = 0},
                                                 {.lora_id = 1},
                                                 {.salt = std::string("1")},
                                                 {.salt = std::vector<std::uint8_t>{'1'}},
                                                 {.salt = std::int64_t{1}},
                                                 {.salt = std::string()},
                                                 {.extra_keys = {{0, 2, "image"}}},
                                                 {.extra_keys = {{0, 2, "other"}}},
                                                 {.extra_keys = {{1, 2, "image"}}}};
    for (const std::uint32_t hash_bits : {kBlockHashBits, 1U}) {
        BlockManagerConfig colliding = config(64);
        colliding.hash_bits = hash_bits;
        Manager manager(colliding);
        for (std::size_t i = 0; i < identities.size(); ++i) {
            EXPECT_EQ(manager.reusable(kX, identities[i]), 0U) << "identity " << i << " sees another's blocks";
            manager.cache(i + 1, kX, identities[i]);
            EXPECT_EQ(manager.reusable(kX, identities[i]), 7U);
        }
    }
}

TEST(Matching, CollidingHashesDoNotShortenReuse) {
    BlockManagerConfig colliding = config(64);
    colliding.hash_bits = 1;
    Manager manager(colliding);
    for (RequestId id = 1; id <= 8; ++id) {
        manager.cache(id, tokens(16, static_cast<TokenId>(id * 1000)));
    }
    for (RequestId id = 1; id <= 8; ++id) {
        EXPECT_EQ(manager.reusable(tokens(17, static_cast<TokenId>(id * 1000))), 16U);
    }
}

// ---------------------------------------------------------------------------------------------------- partial reuse

TEST(Matching, AnUnreferencedLeafIsTakenOver) {
    Manager manager(config(8));
    manager.cache(1, kX);
    const Admission admission = manager.add_sequence(request(2, joined(tokens(6, 1000), tokens(2, 1))));
    EXPECT_EQ(admission.tokens_reused, 6U);
    EXPECT_EQ(admission.blocks_reused, 2U);
    EXPECT_EQ(admission.blocks_new, 0U);
    EXPECT_TRUE(manager.take_transfers().items.empty());
    EXPECT_EQ(manager.reusable(kX), 4U) << "what was taken over is no longer there for others";
}

TEST(Matching, ALeafThatIsTakenOverIsRemovedFromPrimary) {
    BlockManagerConfig with_events = config(8);
    with_events.events_max = 100;
    Manager manager(with_events);
    manager.cache(1, kX);
    const std::vector<BlockEvent> stored = manager.get_latest_events();
    manager.add_sequence(request(2, joined(tokens(6, 1000), tokens(2, 1))));
    const std::vector<BlockEvent> events = manager.get_latest_events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].kind, EventKind::removed);
    EXPECT_EQ(events[0].block_hash, stored[1].block_hash);
    EXPECT_EQ(events[0].tier, Tier::primary);
}

TEST(Matching, ASharedBlockIsCopied) {
    Manager manager(config(8));
    manager.add_sequence(request(1, kX));
    manager.store_context_blocks(1, 8);
    const Admission admission = manager.add_sequence(request(2, joined(tokens(6, 1000), tokens(2, 1))));
    EXPECT_EQ(admission.tokens_reused, 6U);
    const auto items = manager.take_transfers().items;
    ASSERT_EQ(items.size(), 1U);
    EXPECT_EQ(items[0].kind, TransferKind::copy);
    EXPECT_EQ(items[0].tokens, 2U);
    EXPECT_EQ(static_cast<std::int32_t>(items[0].slot_src), manager.slots(1)[1]);
    EXPECT_EQ(static_cast<std::int32_t>(items[0].slot_dst), manager.slots(2)[1]);
}

TEST(Matching, TwoRequestsThatWantOneLeafBothGetItsTokens) {
    Manager manager(config(8));
    manager.cache(1, kX);
    const BatchAdmission result = manager.add_batch(
        {request(11, joined(tokens(6, 1000), tokens(2, 1))), request(12, joined(tokens(7, 1000), tokens(1, 2)))});
    EXPECT_EQ(result.admitted[0].tokens_reused, 6U);
    EXPECT_EQ(result.admitted[1].tokens_reused, 7U);
    manager.check_invariants();
    EXPECT_EQ(manager.run_transfers().size(), 1U) << "one takes it over, the other copies";
    manager.check_invariants();
}

TEST(Matching, WithoutCopiesALeafIsReusedOnceAndASharedBlockNotAtAll) {
    BlockManagerConfig no_copies = config(16);
    no_copies.copy_on_partial_reuse = false;
    Manager manager(no_copies);
    manager.cache(1, kX);
    const BatchAdmission result = manager.add_batch(
        {request(11, joined(tokens(6, 1000), tokens(2, 1))), request(12, joined(tokens(6, 1000), tokens(2, 2)))});
    EXPECT_EQ(result.admitted[0].tokens_reused, 6U);
    EXPECT_EQ(result.admitted[1].tokens_reused, 4U);
    EXPECT_TRUE(manager.take_transfers().items.empty());
}

TEST(Matching, WithoutPartialReuseOnlyWholeBlocksAreReused) {
    BlockManagerConfig whole = config(16);
    whole.partial_reuse = false;
    Manager manager(whole);
    manager.cache(1, kX);
    EXPECT_EQ(manager.reusable(kX), 4U);
    EXPECT_EQ(manager.reusable(joined(kX, tokens(1, 1))), 8U);
}

TEST(Matching, EachBeamGetsItsOwnCopyOfTheLastIncompleteBlock) {
    BlockManagerConfig beams = config(16);
    beams.beam_width_max = 3;
    Manager manager(beams);
    manager.cache(1, kX);
    manager.add_sequence(request(2, tokens(7, 1000), {.beam_width = 3}));
    EXPECT_EQ(manager.take_transfers().items.size(), 3U);
    const RequestId id = 2;
    const BlockIdTable table = manager.get_batch_cache_block_ids({&id, 1}, std::nullopt).front();
    std::set<std::int64_t> last;
    for (const auto& beam : table) {
        EXPECT_EQ(beam.front(), table.front().front()) << "full prompt blocks are shared";
        last.insert(beam.back());
    }
    EXPECT_EQ(last.size(), 3U);
}

TEST(Matching, AHostBlockThatIsPartlyReusedIsCopiedUpAndStays) {
    Manager manager(config(4, 8));
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(tokens(2, 1000), tokens(3, 1))));
    const auto items = manager.run_transfers();
    ASSERT_EQ(items.size(), 1U);
    EXPECT_EQ(items[0].kind, TransferKind::onboard);
    EXPECT_EQ(items[0].tokens, 2U);
    EXPECT_EQ(manager.reusable(joined(kX, tokens(1, 1))), 8U);
}

}  // namespace
}  // namespace kvfix
