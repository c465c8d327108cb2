// Copies between queueing and their end: which blocks must not be seen, which must stay, and which a failure takes with
// it.
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kept_at;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);
const Tokens kY = tokens(8, 2000);

class Transfers : public ::testing::Test {
  protected:
    // Another prompt takes every primary slot. Nobody has taken the copies that this needs yet.
    void evict_everything(RequestId id) {
        const TierStats primary = manager.primary();
        manager.add_sequence(request(id, tokens(static_cast<std::uint32_t>(primary.free + primary.cached) * 4, 9000)));
    }

    Manager manager{config(4, 4)};
};

TEST_F(Transfers, AnOffloadedBlockIsFoundOnlyAfterItsCopyHasEnded) {
    manager.cache(1, kX);
    evict_everything(2);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U) << "queued";
    const TransferBatch batch = manager.take_transfers();
    ASSERT_EQ(batch.items.size(), 2U);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U) << "taken";
    EXPECT_EQ(manager.host().in_flight, 2U);
    manager.complete(batch.ticket);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.host().in_flight, 0U);
    manager.check_invariants();
}

TEST_F(Transfers, OnlyTheBatchThatQueuedAnOnboardSharesItsBlock) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, Tokens(kX.begin(), kX.begin() + 5)));
    EXPECT_EQ(manager.reusable(kX), 0U) << "its first block is on its way";
    manager.run_transfers();
    EXPECT_EQ(manager.reusable(kX), 7U);
}

TEST_F(Transfers, ABlockInFlightCannotBePinned) {
    manager.cache(1, kX);
    evict_everything(2);
    const BlockId in_flight = manager.take_transfers().items.front().block_id;
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.pin_blocks_by_id({&in_flight, 1}), BlockInFlight);
    EXPECT_EQ(manager.digest(), before);
}

TEST_F(Transfers, ASlotInFlightStaysSoAfterItsSequenceHasGone) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(kX, {1})));
    const TransferBatch batch = manager.take_transfers();
    manager.forget(3);
    EXPECT_EQ(manager.primary().in_flight, 2U);
    EXPECT_THROW(manager.add_sequence(request(4, tokens(12, 9000))), OutOfBlocks)
        << "two of four slots are being written";
    manager.complete(batch.ticket);
    EXPECT_EQ(manager.primary().cached, 2U);
    manager.add_sequence(request(4, tokens(12, 9000)));
    manager.check_invariants();
}

TEST_F(Transfers, ASlotIsOffloadedBeforeItIsWrittenAgain) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.cache(3, kY);
    manager.add_sequence(request(4, {7}));              // one slot is left free
    manager.add_sequence(request(5, joined(kX, {1})));  // X comes back, into slots that Y has to leave
    const auto items = manager.take_transfers().items;
    for (std::size_t i = 0; i < items.size(); ++i) {
        for (std::size_t later = i + 1; later < items.size(); ++later) {
            const bool reads_what_was_written = items[i].kind == TransferKind::onboard &&
                                                items[later].kind == TransferKind::offload &&
                                                items[i].slot_dst == items[later].slot_src;
            EXPECT_FALSE(reads_what_was_written)
                << "item " << later << " reads a slot that item " << i << " has overwritten";
        }
    }
    EXPECT_EQ(items.size(), 4U) << "two offloads and two onboards";
}

TEST_F(Transfers, ACleanCopyIsKeptAndNotCopiedAgain) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(kX, {1})));
    EXPECT_EQ(manager.run_transfers().size(), 2U);
    manager.remove(3);
    evict_everything(4);
    EXPECT_TRUE(manager.take_transfers().items.empty()) << "the host copies were still good";
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.analyze_prefix_reuse(request(5, joined(kX, {1}))).blocks_host, 2U);
}

TEST_F(Transfers, TheSourceOfACopyKeepsItsSlotUntilTheCopyEnds) {
    manager.cache(1, kX);
    manager.add_sequence(request(2, kX));               // holds X's first block, and takes over the second
    manager.store_context_blocks(2, 8);                 // and makes it findable again
    manager.add_sequence(request(3, tokens(6, 1000)));  // copies from it
    const TransferBatch batch = manager.take_transfers();
    ASSERT_EQ(batch.items.size(), 1U);
    ASSERT_EQ(batch.items[0].kind, TransferKind::copy);
    manager.remove(2);
    manager.forget(3);
    EXPECT_EQ(manager.primary().owned, 1U) << "the source is locked";
    EXPECT_EQ(manager.primary().in_flight, 1U) << "the destination is in flight";
    manager.complete(batch.ticket);
    EXPECT_EQ(manager.primary().cached, 2U);
    EXPECT_EQ(manager.primary().free, 2U);
    manager.check_invariants();
}

// ---------------------------------------------------------------------------------------------------------- failure

TEST_F(Transfers, AFailedOnboardNamesItsOwnersAndLeavesTheTree) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_batch({request(9, joined(Tokens(kX.begin(), kX.begin() + 4), {1})),
                       request(3, joined(Tokens(kX.begin(), kX.begin() + 4), {2}))});
    const TransferBatch batch = manager.take_transfers();
    EXPECT_EQ(manager.fail(batch.ticket), (std::vector<RequestId>{3, 9}));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U) << "half a block is never served";
    manager.check_invariants();
    manager.remove(3);
    manager.remove(9);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U) << "and does not come back through its owners";
    EXPECT_EQ(manager.primary().free, 4U);
    EXPECT_EQ(manager.host().free, 4U);
}

TEST_F(Transfers, StoringStopsBeforeAnUndeliveredBlock) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    const Tokens longer = joined(kX, tokens(8, 3000));
    manager.add_sequence(request(3, longer));
    manager.fail(manager.take_transfers().ticket);
    manager.store_context_blocks(3, 16);
    EXPECT_EQ(manager.reusable(longer), 0U);
    manager.remove(3);
    EXPECT_EQ(manager.reusable(longer), 0U);
    manager.check_invariants();
}

TEST_F(Transfers, AFailedOffloadHurtsNobodyAndLosesTheBlock) {
    manager.cache(1, kX);
    evict_everything(2);
    EXPECT_TRUE(manager.fail(manager.take_transfers().ticket).empty());
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U);
    EXPECT_EQ(manager.host().free, 4U);
    manager.check_invariants();
}

TEST_F(Transfers, AFailedCopyHurtsOnlyTheRequestThatWantedIt) {
    manager.add_sequence(request(1, kX));
    manager.store_context_blocks(1, 8);
    manager.add_sequence(request(2, tokens(6, 1000)));
    EXPECT_EQ(manager.fail(manager.take_transfers().ticket), (std::vector<RequestId>{2}));
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U) << "the source is as good as before";
    manager.check_invariants();
}

TEST_F(Transfers, AFailureAfterItsOwnersHaveGoneFreesTheSlots) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(kX, {1})));
    const TransferBatch batch = manager.take_transfers();
    manager.forget(3);
    EXPECT_TRUE(manager.fail(batch.ticket).empty());
    EXPECT_EQ(manager.primary().free, 4U);
    manager.check_invariants();
}

// ---------------------------------------------------------------------------------------------------------- tickets

TEST_F(Transfers, ATicketEndsOnce) {
    manager.cache(1, kX);
    evict_everything(2);
    const Ticket completed = manager.take_transfers().ticket;
    manager.forget(2);
    manager.cache(3, kY);
    evict_everything(4);
    const Ticket failed = manager.take_transfers().ticket;
    ASSERT_NE(completed, failed);
    manager.complete(completed);
    manager.fail(failed);
    for (const Ticket ticket : {completed, failed, Ticket{12345}}) {
        EXPECT_THROW(manager.complete(ticket), std::invalid_argument);
        EXPECT_THROW(manager.fail(ticket), std::invalid_argument);
    }
}

TEST_F(Transfers, ABatchWithoutTransfersNeedsNoEndAndMayHaveMany) {
    for (int attempt = 0; attempt < 3; ++attempt) {
        const TransferBatch batch = manager.take_transfers();
        ASSERT_TRUE(batch.items.empty());
        EXPECT_EQ(batch.ticket, TransferLedger::kNothing) << "a ticket of its own would be kept until it ends";
        manager.complete(batch.ticket);
        EXPECT_TRUE(manager.fail(batch.ticket).empty());
    }
    manager.check_invariants();
}

TEST_F(Transfers, TicketsMayEndInAnyOrder) {
    manager.cache(1, kX);
    evict_everything(2);
    const Ticket offload = manager.take_transfers().ticket;
    manager.forget(2);
    manager.cache(3, kY);
    evict_everything(4);
    const Ticket later = manager.take_transfers().ticket;
    manager.complete(later);
    EXPECT_EQ(manager.reusable(joined(kY, {1})), 8U);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U);
    manager.complete(offload);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    manager.check_invariants();
}

TEST(ManyTickets, OneThatFailsBetweenOthersTakesNothingOfTheirsAndNamesNobodyElse) {
    Manager manager(config(12, 12));
    const Tokens z = tokens(8, 3000);
    manager.cache(1, kX);
    manager.cache(2, kY);
    manager.cache(3, z);
    manager.flush_primary(4);
    std::vector<Ticket> tickets;
    for (const auto& [id, prompt] : {std::pair{RequestId{5}, kX}, {RequestId{6}, kY}, {RequestId{7}, z}}) {
        manager.add_sequence(request(id, joined(prompt, {1})));
        tickets.push_back(manager.take_transfers().ticket);
    }
    EXPECT_EQ(manager.fail(tickets[1]), std::vector<RequestId>{6});
    EXPECT_EQ(manager.fail(tickets[2]), std::vector<RequestId>{7});
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U) << "it is on its way still";
    manager.complete(tickets[0]);
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 8U);
    EXPECT_EQ(manager.reusable(joined(kY, {1})), 0U);
    manager.check_invariants();
}

TEST_F(Transfers, OffloadAppliesFromItsPriorityOn) {
    manager.cache(1, kX, kept_at(29));
    manager.cache(2, kY, kept_at(30));
    evict_everything(3);
    manager.run_transfers();
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 0U);
    EXPECT_EQ(manager.reusable(joined(kY, {1})), 8U);
}

}  // namespace
}  // namespace kvfix
