// One event for one use: what a fence means, and that no event stands for two uses.
#include "staging/fence.h"

#include "core/check.h"
#include "staging/copy_engine.h"
#include "staging/offset_stager.h"
#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

class FenceTest : public StagingTest {
  protected:
    Fence fence{device};
};

TEST_F(FenceTest, OneThatWasNeverRaisedHasPassed) {
    EXPECT_TRUE(fence.passed());
    fence.wait();
}

TEST_F(FenceTest, PassesBehindTheWorkThatItEnds) {
    const Words word = device_words(1);
    hold_until_wait(stream);
    fill(word, 7, stream);
    fence.raise(stream);
    EXPECT_FALSE(fence.passed());
    fence.wait();
    ASSERT_EQ(opened, 1) << "the stream was held, so only a wait can have opened it";
    EXPECT_EQ(values(word), all(1, 7));
    EXPECT_TRUE(fence.passed());
}

TEST_F(FenceTest, IsNotRaisedTwiceWhilePending) {
    hold_until_wait(stream);
    fence.raise(stream);
    EXPECT_THROW(fence.raise(other), InvariantViolation);
    fence.wait();
    fence.raise(other);
    fence.wait();
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(FenceTest, BehindAFailureItThrowsAndNeverPasses) {
    const Words word = device_words(1);
    probe.sim().fail_operation(1);
    const GateHandle gate = probe.close_gate(stream);
    fill(word, 1, stream);
    fence.raise(stream);
    probe.open_gate(gate);
    for (int i = 0; i < 2; ++i) {
        EXPECT_CONTAINS(error_of([&] { fence.wait(); }), "on request");
        EXPECT_CONTAINS(error_of([&] { static_cast<void>(fence.passed()); }), "on request");
    }
}

TEST_F(FenceTest, TheWatchSeesAnEventThatIsShared) {
    const EventHandle event = probe.create_event();
    const GateHandle gate = probe.close_gate(stream);
    probe.record(event, stream);
    probe.record(event, other);
    EXPECT_EQ(probe.events_shared(), 1U);
    probe.open_gate(gate);
    probe.synchronize(stream);
    probe.synchronize(other);
    probe.record(event, other);
    EXPECT_EQ(probe.events_shared(), 1U);
}

TEST_F(FenceTest, NoEventServesTwoUsesInFlight) {
    constexpr std::uint32_t kRows = 4;
    constexpr std::uint32_t kBlocks = 20;
    const Words table = pinned(std::size_t{kRows} * 2 * kBlocks);  // where early copies read
    const Words target = device_words(table.size());
    const Words more = pinned(table.size());
    const std::vector<std::uint32_t> rows{0, 1, 2, 3};
    Shipment shipment{.dst = {target.data(), target.size(), kBlocks},
                      .table = {table.data(), table.size(), std::size_t{2} * kBlocks, kBlocks, 1, kRows, kBlocks},
                      .rows = rows,
                      .width = kBlocks,
                      .stream = stream};
    OffsetStager snapshot(device, {.rows_max = kRows, .blocks_max = kBlocks}, StagerMode::snapshot);
    // Never late, because a late copy would still read while the table is written.
    OffsetStager early(device, {.rows_max = kRows, .blocks_max = kBlocks, .late_after = std::chrono::minutes(1)},
                       StagerMode::early_copy);
    CopyEngine engine(device, 3);
    const CopySpan span = span_of(target, more);
    for (std::int32_t i = 0; i < 60; ++i) {
        std::ranges::fill(table, i);
        shipment.stream = i % 3 == 0 ? other : stream;
        snapshot.ship(shipment, kRows);
        early.ship(shipment, kRows);
        engine.submit({&span, 1}, {}, i % 2 == 0 ? other : stream);
    }
    snapshot.close();
    early.close();
    EXPECT_EQ(probe.events_shared(), 0U);
}

}  // namespace
}  // namespace kvfix
