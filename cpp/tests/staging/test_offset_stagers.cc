// The table's content at the moment of the call arrives, for both layouts and both ways of staging.
#include <limits>
#include <stdexcept>

#include "tests/staging/stager_fixture.h"

namespace kvfix {
namespace {

class EveryStager : public StagerTest, public ::testing::WithParamInterface<Case> {
  protected:
    EveryStager() { make(GetParam(), {}); }
    Target to = target();
};

TEST_P(EveryStager, TheSourceMayBeOverwrittenWhileTheCopyIsPending) {
    for (std::int32_t i = 0; i < 20; ++i) {
        number_table(i);
        table[plane(1, 2, 0) + 3] = kBadPage;
        Rows rows{2, 4, 0};
        const GateHandle gate = probe.close_gate(stream);
        ship(to, rows, size.blocks, stream);
        std::ranges::fill(table, 123456);  // plain stores, so that ThreadSanitizer would see a pending read
        std::ranges::fill(rows, 1U);
        probe.open_gate(gate);
        probe.synchronize(stream);
        expect_arrived(to);
    }
}

TEST_P(EveryStager, EveryWidthArrivesAndNothingBeyondItIsTouched) {
    for (std::uint32_t width = 0; width <= size.blocks; ++width) {
        Target fresh = target();
        number_table(static_cast<std::int32_t>(1000 * width));
        ship(fresh, {4, 1}, width, stream);
        probe.synchronize(stream);
        expect_arrived(fresh);
    }
}

TEST_P(EveryStager, NoRowsShipNothing) {
    ship(to, {}, size.blocks, stream);
    probe.synchronize(stream);
    expect_arrived(to);
    EXPECT_EQ(stager->stats().ships, 1U);
    EXPECT_EQ(stager->stats().staged_bytes, 0U);
}

TEST_P(EveryStager, AShipmentThatDoesNotFitIsRefusedAndNothingIsShipped) {
    const auto refused = [&](Shipment one, std::uint32_t dst_rows) {
        EXPECT_THROW(stager->ship(one, dst_rows), std::invalid_argument);
    };
    const Rows rows{0, 1};
    const Rows out_of_table{0, 5};
    const Rows too_many(size.rows + 1, 0);
    const Shipment good = shipment(to, rows, size.blocks, stream);
    refused(shipment(to, rows, size.blocks + 1, stream), size.rows);
    refused(shipment(to, out_of_table, size.blocks, stream), size.rows);
    refused(shipment(to, too_many, size.blocks, stream), size.rows + 1);
    refused(good, 1);
    Shipment bad = good;
    bad.dst.blocks = size.blocks - 1;
    refused(bad, size.rows);
    bad = good;
    bad.width = bad.dst.blocks = size.blocks + 1;
    refused(bad, size.rows);
    bad = good;
    bad.table.pools = 1;
    refused(bad, size.rows);
    bad = good;
    bad.table.rows = size.rows + 1;
    refused(bad, size.rows);
    probe.synchronize(stream);
    expect_arrived(to);
    ship(to, {3}, size.blocks, stream);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_P(EveryStager, ClosingWaitsAndLaterShipsAreRefused) {
    hold_until_wait(stream);
    number_table(5);
    ship(to, {0, 1}, size.blocks, stream);
    stager->close();
    ASSERT_EQ(opened, 1);
    expect_arrived(to);
    stager->close();
    EXPECT_THROW(stager->ship(shipment(to, {}, 1, stream), size.rows), std::invalid_argument);
}

TEST_P(EveryStager, DestroyingWaitsToo) {
    hold_until_wait(stream);
    number_table(5);
    ship(to, {0, 1}, size.blocks, stream);
    stager.reset();
    ASSERT_EQ(opened, 1);
    probe.synchronize(stream);  // throws if memory was given back before the work that uses it ran
    expect_arrived(to);
}

TEST_P(EveryStager, UnpluggedItTellsAndClosesWithoutHanging) {
    const KeepsMemoryOnPurpose keeps;
    stager.reset();
    make(GetParam(), {});
    const GateHandle gate = probe.close_gate(stream);
    ship(to, {0, 1}, size.blocks, stream);
    probe.sim().unplug();
    probe.open_gate(gate);
    EXPECT_CONTAINS(error_of([&] { stager->close(); }), "unplugged");
    EXPECT_THROW(stager->ship(shipment(to, {}, 1, stream), size.rows), std::invalid_argument) << "closed all the same";
    stager->close();
}

INSTANTIATE_TEST_SUITE_P(Stagers, EveryStager, ::testing::ValuesIn(kEveryCase),
                         [](const auto& named) { return name_of(named.param); });

TEST_F(StagerTest, WithoutKernelsPagesWrapAroundLikeTheGpus) {
    make({OffsetLayout::v2, StagerMode::snapshot, false}, {.pools = 1, .rows = 1, .blocks = 1});
    Target to = target();
    table[0] = std::numeric_limits<std::int32_t>::max();
    stager->ship(shipment(to, {0}, 1, stream), 1);
    probe.synchronize(stream);
    EXPECT_EQ(values(to.words), (std::vector<std::int32_t>{-2, -1}));
}

TEST_F(StagerTest, AnEarlyCopyWantsKernelsAndASimulatedDeviceIsNotWorthIt) {
    make({OffsetLayout::v1, StagerMode::automatic}, {1, 64, 2048});
    EXPECT_EQ(stager->stats().mode, StagerMode::snapshot);
    probe.leave_kernels_out();
    EXPECT_THROW(make({OffsetLayout::v1, StagerMode::early_copy}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace kvfix
