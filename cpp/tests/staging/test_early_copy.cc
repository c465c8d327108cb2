// Early copies: when the caller may write to the table, and what happens to a shipment whose copy is late or fails.
#include <thread>

#include "tests/staging/stager_fixture.h"

namespace kvfix {
namespace {

class EarlyCopy : public StagerTest {
  protected:
    void make_early(Size with = {}) {
        make({OffsetLayout::v1, StagerMode::early_copy}, with);
        copies = probe.newest_stream();
        to = target();
        number_table(1);
    }
    void ship_lent(const Rows& rows) {
        Shipment one = shipment(to, rows, size.blocks, stream);
        one.lent = true;
        stager->ship(one, size.rows);
        expect(to, rows, size.blocks);
    }
    void spoil_table() { std::ranges::fill(table, 123456); }
    std::uint64_t bytes_of(std::size_t rows) const { return size.elements() / size.rows * rows * sizeof(std::int32_t); }

    static constexpr std::chrono::nanoseconds kAtOnce{0};
    const Rows three{2, 4, 0};  // in a range of five
    StreamHandle copies;        // the stager's own stream
    Target to;
};

TEST_F(EarlyCopy, TheRangeTravelsOnAStreamThatWaitsForNothing) {
    make_early();
    const GateHandle gate = probe.close_gate(stream);
    ship(to, three, size.blocks, stream);
    spoil_table();
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(5));
    probe.open_gate(gate);
    probe.synchronize(stream);
    expect_arrived(to);
}

// Rows that are too long to travel with what lies between them go line by line.
TEST_F(EarlyCopy, RowsOfEveryLengthArriveInBothLayouts) {
    for (const OffsetLayout each : {OffsetLayout::v1, OffsetLayout::v2}) {
        for (const std::uint32_t blocks : {1U, 1023U, 1024U, 1025U, 1100U}) {
            make({each, StagerMode::early_copy}, {.blocks = blocks});
            const std::uint64_t lines = each == OffsetLayout::v1 ? 2 : 1;
            const bool is_whole = blocks <= 1024;
            for (const std::uint32_t width : {blocks, (blocks + 1) / 2}) {
                Target fresh = target();
                number_table(static_cast<std::int32_t>(blocks));
                const GateHandle gate = probe.close_gate(stream);
                const std::uint64_t before = stager->stats().staged_bytes;
                ship(fresh, three, width, stream);
                spoil_table();
                const std::uint64_t elements =
                    is_whole ? 4 * 2 * blocks + (lines - 1) * blocks + width : 5 * lines * width;
                EXPECT_EQ(stager->stats().staged_bytes - before, 2 * elements * sizeof(std::int32_t));
                probe.open_gate(gate);
                probe.synchronize(stream);
                expect_arrived(fresh);
            }
            stager.reset();
        }
    }
}

TEST_F(EarlyCopy, OneThatIsLateGoesAsASnapshotAndHoldsNobodyUp) {
    late_after = kAtOnce;
    make_early();
    const GateHandle busy = probe.close_gate(copies);
    ship(to, three, size.blocks, stream);
    spoil_table();
    probe.synchronize(stream);  // nothing on it waits for the copy
    expect_arrived(to);
    EXPECT_EQ(stager->stats().late_copies, 1U);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(3));
    probe.open_gate(busy);
    probe.synchronize(copies);  // it reads a table that belongs to another owner by now
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, AfterALateOneTheNextGoAnotherWayForAWhile) {
    late_after = kAtOnce;
    make_early();
    GateHandle busy = probe.close_gate(copies);
    ship(to, three, size.blocks, stream);
    probe.open_gate(busy);
    probe.synchronize(copies);
    for (int detour = 0; detour < 64; ++detour) {
        ship(to, three, size.blocks, stream);
    }
    EXPECT_EQ(stager->stats().staged_bytes, 65 * bytes_of(3));
    EXPECT_EQ(stager->stats().late_copies, 1U) << "none of them was tried";
    busy = probe.close_gate(copies);
    ship(to, three, size.blocks, stream);
    EXPECT_EQ(stager->stats().late_copies, 2U) << "and then one is";
    probe.open_gate(busy);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, ABufferThatALateCopyStillFillsIsLeftAlone) {
    late_after = kAtOnce;
    make_early();
    const GateHandle busy = probe.close_gate(copies);
    for (int shipped = 0; shipped < 66; ++shipped) {
        ship(to, three, size.blocks, stream);
    }
    EXPECT_EQ(stager->stats().late_copies, 1U);
    probe.synchronize(stream);
    expect_arrived(to);
    probe.open_gate(busy);
}

TEST_F(EarlyCopy, ALentTableIsReadUntilItIsSettled) {
    make_early();
    const GateHandle busy = probe.close_gate(copies);
    ship_lent(three);
    table[plane(1, 2, 0)] = 123456;  // the lender may not do this while the copy is pending
    probe.open_gate(busy);
    probe.synchronize(stream);
    to.expected[plane(1, 0, 0)] = 123456;
    expect_arrived(to);
}

TEST_F(EarlyCopy, OneThatIsSettledInItsTimeIsNotLate) {
    make_early();
    for (std::uint64_t shipped = 1; shipped <= 3; ++shipped) {
        const GateHandle busy = probe.close_gate(copies);
        ship_lent(three);
        std::thread settling([&] { stager->settle(); });
        probe.open_gate(busy);
        settling.join();
        EXPECT_EQ(stager->stats().late_copies, 0U);
        EXPECT_EQ(stager->stats().staged_bytes, shipped * bytes_of(5)) << "it went another way";
    }
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, SettlingWaitsForTheCopyAndForNothingElse) {
    late_after = kAtOnce;
    make_early();
    const GateHandle held = probe.close_gate(stream);
    hold_until_wait(copies);
    ship_lent(three);
    ASSERT_EQ(opened, 0) << "shipping what is lent waits for nothing";
    stager->settle();
    ASSERT_EQ(opened, 1);
    spoil_table();
    EXPECT_EQ(stager->stats().late_copies, 1U);
    probe.open_gate(held);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, ClosingWaitsForWhatIsLent) {
    late_after = kAtOnce;
    make_early();
    hold_until_wait(copies);
    ship_lent(three);
    stager->close();
    ASSERT_EQ(opened, 1);
    spoil_table();
    probe.synchronize(stream);
    expect_arrived(to);
    stager->settle();  // nothing was lent
}

TEST_F(EarlyCopy, WithEveryBufferInUseItWaitsForTheCallersStreamAndCountsThat) {
    make_early();
    const GateHandle gate = probe.close_gate(stream);
    for (int shipped = 0; shipped < 3; ++shipped) {
        ship(to, three, size.blocks, stream);
    }
    EXPECT_EQ(stager->stats().ring_waits, 0U);
    probe.at_next_wait([&] {
        ++opened;
        probe.open_gate(gate);
    });
    ship(to, three, size.blocks, stream);
    EXPECT_EQ(opened, 1);
    EXPECT_EQ(stager->stats().ring_waits, 1U);
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, ATableInOrdinaryMemoryGoesAsASnapshot) {
    make_early();
    std::vector<std::int32_t> ordinary(table.begin(), table.end());
    Shipment one = shipment(to, three, size.blocks, stream);
    one.table.data = ordinary.data();
    stager->ship(one, size.rows);
    expect(to, three, size.blocks);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(3));
    ship(to, three, size.blocks, stream);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(3) + bytes_of(5)) << "each table is judged by itself";
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, RowsFarApartGoAsASnapshot) {
    make_early({.pools = 1, .rows = 20, .blocks = 3});
    ship(to, {19, 1}, size.blocks, stream);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(2));
    ship(to, {8, 1}, size.blocks, stream);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(2) + bytes_of(8));
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, ACopyThatFailsIsTheLastOne) {
    make_early();
    probe.sim().fail_operation(1);
    ship(to, three, size.blocks, stream);
    ship(to, three, size.blocks, stream);
    spoil_table();
    EXPECT_EQ(stager->stats().staged_bytes, 2 * bytes_of(3));
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_F(EarlyCopy, AFailureOfWhatWasLentIsToldByWhoeverSettles) {
    const KeepsMemoryOnPurpose keeps;  // the caller's stream has failed with the copy that it waited for
    make_early();
    const GateHandle busy = probe.close_gate(copies);
    probe.sim().fail_operation(1);
    ship_lent(three);
    probe.open_gate(busy);
    EXPECT_CONTAINS(error_of([&] { stager->settle(); }), "fail");
    stager->settle();  // throws once
    const Shipment next = shipment(to, three, size.blocks, other);
    stager->ship(next, size.rows);
    EXPECT_EQ(stager->stats().staged_bytes, bytes_of(5) + bytes_of(3)) << "snapshots from now on";
    probe.synchronize(other);
}

}  // namespace
}  // namespace kvfix
