// Sequences that are suspended and come back: what they keep, what others may take, and what a failure costs.
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

const Tokens kX = tokens(8, 1000);

class Preemption : public ::testing::Test {
  protected:
    void begin(RequestId id, const Tokens& prompt) {
        manager.add_sequence(request(id, prompt));
        manager.run_transfers();
        manager.store_context_blocks(id, static_cast<std::uint32_t>(prompt.size()));
    }

    Manager manager{config(4, 4)};
};

TEST_F(Preemption, ASuspendedSequenceHoldsNothingInPrimaryAndComesBackWhole) {
    begin(1, tokens(14, 1000));
    const auto ids = manager.ids(1);
    EXPECT_EQ(manager.suspend_sequence(1), 4U);
    EXPECT_EQ(manager.primary().cached + manager.primary().free, 4U);
    const auto down = manager.run_transfers();
    ASSERT_EQ(down.size(), 4U);
    EXPECT_EQ(down.back().kind, TransferKind::offload);
    EXPECT_EQ(down.back().tokens, 2U) << "of the last block what is reserved";
    manager.add_sequence(request(2, tokens(16, 5000)));
    EXPECT_TRUE(manager.take_transfers().items.empty()) << "all that was cached has its copy";
    EXPECT_THROW(manager.resume_sequence(1), OutOfBlocks);
    manager.forget(2);
    EXPECT_EQ(manager.blocks_to_resume(1), std::vector<std::uint64_t>{4});
    EXPECT_EQ(manager.resume_sequence(1), 4U);
    const auto up = manager.run_transfers();
    ASSERT_EQ(up.size(), 4U);
    EXPECT_EQ(up.back().slot_src, down.back().slot_dst);
    EXPECT_EQ(up.back().tokens, 2U);
    EXPECT_EQ(manager.ids(1), ids);
    EXPECT_EQ(manager.host().free, 1U) << "the block that is written on has no copy any more";
    manager.check_invariants();
}

TEST_F(Preemption, WhatIsStillCachedComesBackWithoutACopy) {
    begin(1, kX);
    manager.suspend_sequence(1);
    EXPECT_EQ(manager.resume_sequence(1), 0U) << "even before the copies to host have run";
    manager.run_transfers();
    EXPECT_EQ(manager.suspend_sequence(1), 0U) << "the host copies are still good";
    manager.check_invariants();
}

TEST_F(Preemption, AVictimWhoseCopyIsOnItsWayNeedsNoOther) {
    begin(1, kX);
    manager.suspend_sequence(1);
    manager.add_sequence(request(2, tokens(16, 5000)));
    EXPECT_EQ(manager.run_transfers().size(), 2U);
    EXPECT_EQ(manager.analyze_prefix_reuse(request(3, joined(kX, {1}))).blocks_host, 2U);
    manager.check_invariants();
}

TEST_F(Preemption, NobodyTakesTheHostSlotsOfASuspendedSequence) {
    begin(1, tokens(16, 1000));
    manager.suspend_sequence(1);
    manager.run_transfers();
    for (RequestId id = 2; id < 10; ++id) {
        manager.cache(id, tokens(16, static_cast<TokenId>(id * 1000)));
    }
    EXPECT_EQ(manager.host().owned, 4U);
    EXPECT_EQ(manager.resume_sequence(1), 4U);
    manager.check_invariants();
}

TEST_F(Preemption, AFullHostTierRefusesAndChangesNothing) {
    begin(1, tokens(16, 1000));
    manager.suspend_sequence(1);
    manager.run_transfers();
    manager.add_sequence(request(2, {1, 2, 3}));
    const std::uint64_t before = manager.digest();
    EXPECT_NE(message_of<OutOfBlocks>([&] { manager.suspend_sequence(2); }).find("1 host blocks needed, 0 free"),
              std::string::npos);
    EXPECT_EQ(manager.digest(), before);
}

TEST_F(Preemption, HostCopiesThatItKeepsAreNoRoomForItsOtherBlocks) {
    Manager small(config(4, 2));
    small.cache(1, kX);
    small.flush_primary(2);
    small.add_sequence(request(3, joined(kX, {1})));
    small.run_transfers();
    const std::uint64_t before = small.digest();
    EXPECT_THROW(small.suspend_sequence(3), OutOfBlocks) << "both slots hold copies that it needs itself";
    EXPECT_EQ(small.digest(), before);
}

TEST_F(Preemption, WithoutAHostTierNothingIsSuspended) {
    Manager without(config(4));
    without.add_sequence(request(1, kX));
    EXPECT_THROW(without.suspend_sequence(1), OutOfBlocks);
    EXPECT_EQ(without.ids(1).size(), 2U);
}

TEST_F(Preemption, WhatIsOnItsWayIsNotSuspendedNorResumed) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(kX, {1})));
    EXPECT_THROW(manager.suspend_sequence(3), BlockInFlight);
    manager.run_transfers();
    manager.suspend_sequence(3);
    const Ticket ticket = manager.take_transfers().ticket;
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.resume_sequence(3), BlockInFlight) << "its private block is nowhere else";
    EXPECT_EQ(manager.digest(), before);
    manager.complete(ticket);
    EXPECT_EQ(manager.resume_sequence(3), 1U);
}

TEST_F(Preemption, WhatAnotherRequestBringsBackIsWaitedFor) {
    begin(1, kX);
    manager.suspend_sequence(1);
    manager.run_transfers();
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(kX, {1})));
    const Ticket onboard = manager.take_transfers().ticket;
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.resume_sequence(1), BlockInFlight);
    EXPECT_EQ(manager.digest(), before);
    manager.complete(onboard);
    EXPECT_EQ(manager.resume_sequence(1), 0U);
    manager.check_invariants();
}

TEST_F(Preemption, ALostCopyIsNamedAndTheSequenceDoesNotComeBack) {
    begin(1, {1, 2, 3});
    manager.suspend_sequence(1);
    EXPECT_EQ(manager.fail(manager.take_transfers().ticket), std::vector<RequestId>{1});
    EXPECT_NE(message_of<std::invalid_argument>([&] { manager.resume_sequence(1); }).find("was lost while"),
              std::string::npos);
    manager.check_invariants();
    manager.remove(1, 3);
    EXPECT_EQ(manager.reusable({1, 2, 3, 4}), 0U) << "nothing of it is stored";
    EXPECT_EQ(manager.host().free, 4U);
}

// The sequence has stored its blocks before, and then its bytes were sure. Its knowledge of that ends when it leaves.
TEST_F(Preemption, WhatIsLostOnItsWayBackIsNotStoredAgain) {
    Manager large(config(8, 8));
    large.cache(2, kX);
    large.flush_primary(3);
    large.add_sequence(request(4, joined(kX, {1})));
    large.add_sequence(request(1, tokens(16, 5000)));
    large.store_context_blocks(1, 16);  // while something else is in flight, so that it asks about each of its blocks
    large.run_transfers();
    large.forget(4);
    large.suspend_sequence(1);
    large.run_transfers();
    large.flush_primary(3);
    large.resume_sequence(1);
    EXPECT_EQ(large.fail(large.take_transfers().ticket), std::vector<RequestId>{1});
    large.store_context_blocks(1, 16);
    EXPECT_EQ(large.reusable(tokens(17, 5000)), 0U);
    large.check_invariants();
}

TEST_F(Preemption, AFailedCopyOfWhatIsStillInPrimaryHurtsNobody) {
    begin(1, kX);
    manager.suspend_sequence(1);
    EXPECT_TRUE(manager.fail(manager.take_transfers().ticket).empty());
    EXPECT_EQ(manager.host().free, 4U);
    EXPECT_EQ(manager.primary().owned, 2U) << "it is kept where it is";
    manager.check_invariants();
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.resume_sequence(1), 0U);
    EXPECT_EQ(manager.suspend_sequence(1), 2U) << "and is copied again";
    EXPECT_EQ(manager.primary().owned, 0U);
    manager.check_invariants();
}

TEST_F(Preemption, ASharedPrefixIsKeptForEachAndStaysForTheOthers) {
    begin(1, joined(kX, {1}));
    begin(2, joined(kX, {2}));
    EXPECT_EQ(manager.suspend_sequence(1), 3U);
    manager.run_transfers();
    EXPECT_EQ(manager.primary().owned, 3U) << "the other one's blocks";
    EXPECT_EQ(manager.suspend_sequence(2), 1U) << "the prefix has its copies";
    manager.run_transfers();
    EXPECT_EQ(manager.host().owned, 4U);
    manager.flush_primary(9);
    EXPECT_EQ(manager.resume_sequence(2), 3U);
    manager.run_transfers();
    EXPECT_EQ(manager.resume_sequence(1), 1U);
    manager.run_transfers();
    EXPECT_EQ(manager.host().owned, 0U);
    manager.check_invariants();
}

TEST_F(Preemption, AReaderCannotPinWhatTheOwnerWillWriteOn) {
    begin(1, {1, 2, 3});
    const auto block = BlockId{static_cast<std::uint64_t>(manager.ids(1).front())};
    manager.suspend_sequence(1);
    manager.run_transfers();
    EXPECT_THROW(manager.pin_blocks_by_id({&block, 1}), std::invalid_argument);
    manager.resume_sequence(1);
    EXPECT_THROW(manager.pin_blocks_by_id({&block, 1}), std::invalid_argument);
    manager.run_transfers();
    EXPECT_EQ(manager.pin_blocks_by_id({&block, 1}).front().tier, Tier::primary);
}

TEST_F(Preemption, APinnedBlockStaysInPrimaryUnderItsReader) {
    begin(1, kX);
    const auto pinned = manager.pin(1);
    const auto slot = manager.slots(1).front();
    manager.suspend_sequence(1);
    manager.run_transfers();
    EXPECT_THROW(manager.add_sequence(request(2, tokens(12, 5000))), OutOfBlocks);
    EXPECT_EQ(manager.resume_sequence(1), 0U);
    EXPECT_EQ(manager.slots(1).front(), slot);
    manager.unpin_blocks_by_id(pinned, std::nullopt);
    manager.check_invariants();
}

// The copy holds what was written by then. If the sequence came back earlier, it would write the rest, and the copy
// would pass for all of it.
TEST_F(Preemption, APinnedBlockIsNotWrittenOnWhileItIsCopied) {
    begin(1, joined(kX, {1}));
    const auto pinned = manager.pin(1);
    manager.suspend_sequence(1);
    const Ticket offload = manager.take_transfers().ticket;
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.resume_sequence(1), BlockInFlight);
    EXPECT_EQ(manager.digest(), before);
    manager.complete(offload);
    EXPECT_EQ(manager.resume_sequence(1), 0U);
    EXPECT_EQ(manager.host().free, 2U) << "what it will write on has no copy any more";
    manager.unpin_blocks_by_id(pinned, std::nullopt);
    manager.check_invariants();
}

TEST_F(Preemption, EveryOtherCallAboutASuspendedSequenceIsRefused) {
    begin(1, kX);
    manager.suspend_sequence(1);
    manager.run_transfers();
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.suspend_sequence(1), std::invalid_argument);
    EXPECT_THROW(manager.grow(1, 1), std::invalid_argument);
    EXPECT_THROW(manager.rewind_kv_cache(1, 0), std::invalid_argument);
    EXPECT_THROW(manager.store_context_blocks(1, 8), std::invalid_argument);
    EXPECT_THROW(manager.ids(1), std::invalid_argument);
    EXPECT_THROW(manager.add_sequence(request(1, kX)), std::invalid_argument);
    EXPECT_THROW(manager.remove_sequence(1, true, true, std::nullopt), std::invalid_argument);
    EXPECT_THROW(manager.resume_sequence(2), UnknownRequest);
    EXPECT_EQ(manager.get_token_count(1), 8U);
    EXPECT_EQ(manager.digest(), before);
    manager.resume_sequence(1);
    EXPECT_THROW(manager.resume_sequence(1), std::invalid_argument);
}

TEST_F(Preemption, ARemovedSuspendedSequenceStoresWhatItHas) {
    begin(1, joined(kX, {1}));
    manager.suspend_sequence(1);
    manager.run_transfers();
    manager.remove(1, 9);
    EXPECT_EQ(manager.host().cached, 3U);
    EXPECT_EQ(manager.reusable(joined(kX, {1, 2})), 9U);
    EXPECT_EQ(manager.get_kv_cache_stats().sequences_suspended, 0U);
    manager.check_invariants();
}

TEST_F(Preemption, ForgettingTheTreeLeavesASuspendedSequenceWhole) {
    begin(1, kX);
    manager.suspend_sequence(1);
    manager.reset_reuse_state();
    EXPECT_EQ(manager.primary().free, 4U);
    manager.run_transfers();
    EXPECT_EQ(manager.resume_sequence(1), 2U);
    EXPECT_EQ(manager.run_transfers().front().tokens, 4U);
    manager.check_invariants();
}

}  // namespace
}  // namespace kvfix
