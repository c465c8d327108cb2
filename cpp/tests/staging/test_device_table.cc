// The table that lives on the device: entries over several slots, streams in turn, and starting again after a failure.
#include "tests/staging/stager_fixture.h"

namespace kvfix {
namespace {

class DeviceTableTest : public StagerTest {
  protected:
    // Ten times the entries that a slot usually holds: a ship that changes everything takes every slot there is.
    static constexpr Size kLarge{.pools = 1, .rows = 160, .blocks = 2048};
    void make_small() { make({OffsetLayout::v1, StagerMode::device_table}, {}); }
    Rows every_row() const {
        Rows rows(size.rows);
        std::iota(rows.begin(), rows.end(), 0U);
        return rows;
    }
    // Ships on a new stream, waits and compares.
    void expect_right_on_a_new_stream() {
        const StreamHandle fresh = probe.create_stream();
        Target to = target(fresh);
        ship(to, every_row(), size.blocks, fresh);
        probe.synchronize(fresh);
        expect_arrived(to);
    }
};

TEST_F(DeviceTableTest, EntriesOfSeveralSlotsArriveThoughAllOfThemArePending) {
    make({OffsetLayout::v1, StagerMode::device_table}, kLarge);
    Target to = target();
    const GateHandle gate = probe.close_gate(stream);
    number_table(1);
    ship(to, every_row(), size.blocks, stream);
    EXPECT_EQ(stager->stats().ring_waits, 0U);
    EXPECT_EQ(stager->stats().entries_changed, size.elements());
    probe.open_gate(gate);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(DeviceTableTest, WhereAnEarlierShipIsPendingItWaitsForThatInTheMiddle) {
    make({OffsetLayout::v1, StagerMode::device_table}, kLarge, 2);
    Target to = target();
    hold_until_wait(stream);
    number_table(1);
    ship(to, {0}, size.blocks, stream);
    EXPECT_EQ(stager->stats().ring_waits, 0U);
    number_table(2);
    ship(to, every_row(), size.blocks, stream);
    ASSERT_EQ(opened, 1);
    EXPECT_GE(stager->stats().ring_waits, 1U);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(DeviceTableTest, OnlyWhatChangedIsStagedAndTheRestIsStillThere) {
    make_small();
    Target to = target();
    number_table(1);
    ship(to, every_row(), size.blocks, stream);
    const std::uint64_t entries = stager->stats().entries_changed;
    EXPECT_EQ(entries, size.elements());
    ship(to, every_row(), size.blocks, stream);
    EXPECT_EQ(stager->stats().entries_changed, entries);
    table[plane(1, 3, 0) + size.blocks - 1] = -99;
    table[plane(0, 0, 1)] = -98;
    ship(to, {3, 0}, size.blocks, stream);
    EXPECT_EQ(stager->stats().entries_changed, entries + 2);
    probe.synchronize(stream);
    expect_arrived(to);
}

// With the edge the second stream goes down with the first; without it, it would read a table that was never written.
TEST_F(DeviceTableTest, AUseOnAnotherStreamIsOrderedBehindTheLast) {
    const KeepsMemoryOnPurpose keeps;
    make_small();
    Target to = target();
    Target more = target();
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    number_table(1);
    ship(to, every_row(), size.blocks, stream);
    ship(more, every_row(), size.blocks, other);
    probe.open_gate(gate);
    EXPECT_CONTAINS(error_of([&] { probe.synchronize(other); }), "waited for an event behind a failure");
}

TEST_F(DeviceTableTest, TwoStreamsInTurnSeeTheirOwnTable) {
    make_small();
    Target on_one = target();
    Target on_other = target();
    for (std::int32_t i = 0; i < 50; ++i) {
        number_table(i);
        ship(on_one, every_row(), size.blocks, stream);
        number_table(-i);
        ship(on_other, every_row(), size.blocks, other);
    }
    probe.synchronize(stream);
    probe.synchronize(other);
    expect_arrived(on_one);
    expect_arrived(on_other);
}

TEST_F(DeviceTableTest, AfterALaunchThatWasRefusedTheNextShipStartsAgain) {
    for (std::uint64_t ordinal = 1; ordinal <= 3; ++ordinal) {  // zeroing, entries, gathering
        make_small();
        Target to = target();
        number_table(7);
        probe.refuse_launch(ordinal);
        EXPECT_CONTAINS(error_of([&] { ship(to, every_row(), size.blocks, stream); }), "refused on request");
        ship(to, every_row(), size.blocks, stream);
        number_table(9);
        probe.refuse_launch(1);
        EXPECT_CONTAINS(error_of([&] { ship(to, every_row(), size.blocks, stream); }), "refused on request");
        ship(to, every_row(), size.blocks, stream);
        probe.synchronize(stream);
        expect_arrived(to);
    }
}

TEST_F(DeviceTableTest, AfterALaunchThatFailedLaterTheNextShipStartsAgain) {
    const KeepsMemoryOnPurpose keeps;
    for (const std::uint64_t ordinal : {1U, 2U}) {  // entries, gathering
        for (const bool told : {false, true}) {     // by a ship on the broken stream
            make_small();
            Target to = target();
            number_table(1);
            ship(to, every_row(), size.blocks, stream);
            probe.synchronize(stream);
            const GateHandle gate = probe.close_gate(stream);
            probe.sim().fail_operation(ordinal);
            number_table(7);
            ship(to, every_row(), size.blocks, stream);
            probe.open_gate(gate);
            EXPECT_CONTAINS(error_of([&] { probe.synchronize(stream); }), "on request");
            if (told) {
                EXPECT_CONTAINS(error_of([&] { ship(to, every_row(), size.blocks, stream); }), "on request");
            }
            expect_right_on_a_new_stream();
            stager.reset();
            stream = probe.create_stream();
        }
    }
}

TEST_F(DeviceTableTest, WithNoSlotLeftTheTableIsNotTouched) {
    const KeepsMemoryOnPurpose keeps;
    make({OffsetLayout::v1, StagerMode::device_table}, {}, 2);
    Target to = target();
    for (const StreamHandle on : {stream, other}) {
        ship(to, every_row(), size.blocks, on);
        probe.synchronize(on);
        break_stream(on);
        EXPECT_THROW(ship(to, every_row(), size.blocks, on), DeviceError);  // costs a slot
    }
    const StreamHandle fresh = probe.create_stream();
    hold_until_wait(fresh);
    EXPECT_CONTAINS(error_of([&] { ship(to, every_row(), size.blocks, fresh); }), "none of 2 staging slots is left");
    stager.reset();
    probe.let_everything_run();
    probe.synchronize(fresh);  // throws if something there still used the table when it went
}

// The zeroing belongs to a use of the table like any other: nothing on another stream may overtake it.
TEST_F(DeviceTableTest, ARestartThatGoesNoFurtherHasEndedWhenItThrows) {
    make_small();
    Target to = target();
    hold_until_synchronize(stream);
    number_table(3);
    probe.refuse_launch(2);
    EXPECT_THROW(ship(to, every_row(), size.blocks, stream), DeviceError);
    ASSERT_EQ(opened, 1);
    ship(to, every_row(), size.blocks, other);
    probe.synchronize(other);
    expect_arrived(to);
}

}  // namespace
}  // namespace kvfix
