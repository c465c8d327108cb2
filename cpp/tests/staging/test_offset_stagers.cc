// What arrives is what the table held at the call, for both layouts and both ways of staging.
#include "staging/offset_stager.h"

#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

using Rows = std::vector<std::uint32_t>;
constexpr std::int32_t kUntouched = -7;

struct Case {
    OffsetLayout layout;
    StagerMode mode;
    bool kernels = true;
};

struct Size {
    std::uint32_t pools = 2;
    std::uint32_t rows = 5;
    std::uint32_t blocks = 21;
    std::size_t elements() const { return std::size_t{pools} * rows * 2 * blocks; }
};

// A destination on the device, with what it should hold.
struct Target {
    std::span<std::int32_t> words;
    std::vector<std::int32_t> expected;
};

class StagerTest : public StagingTest {
  protected:
    void make(const Case& of, Size with, std::uint32_t slots = 3) {
        size = with;
        layout = of.layout;
        table = pinned(size.elements());  // so that a stager could let the device read it in place
        if (!of.kernels) {
            probe.leave_kernels_out();
        }
        stager.emplace(device,
                       StagerConfig{.layout = layout,
                                    .num_pools = size.pools,
                                    .rows_max = size.rows,
                                    .blocks_max = size.blocks,
                                    .slots = slots,
                                    .scale = scale},
                       of.mode);
    }
    Target target() {
        Target out{device_words(size.elements()), all(size.elements(), kUntouched)};
        fill(out.words, kUntouched, stream);
        probe.sim().synchronize(stream);
        return out;
    }
    void number_table(std::int32_t from) { std::iota(table.begin(), table.end(), from); }
    std::size_t plane(std::uint32_t pool, std::uint32_t row, std::uint32_t at) const {
        return ((std::size_t{pool} * size.rows + row) * 2 + at) * size.blocks;
    }
    Shipment shipment(const Target& to, const Rows& rows, std::uint32_t width, StreamHandle on) const {
        const std::size_t row = std::size_t{2} * size.blocks;
        return {.dst = {to.words.data(), size.rows * row, size.blocks},
                .table = {table.data(), size.rows * row, row, size.blocks, size.pools, size.rows, size.blocks},
                .rows = rows,
                .width = width,
                .stream = on};
    }
    void ship(Target& to, const Rows& rows, std::uint32_t width, StreamHandle on) {
        stager->ship(shipment(to, rows, width, on), size.rows);
        expect(to, rows, width);
    }
    // By hand: what the layouts promise.
    void expect(Target& to, const Rows& rows, std::uint32_t width) const {
        for (std::uint32_t pool = 0; pool < size.pools; ++pool) {
            for (std::uint32_t row = 0; row < rows.size(); ++row) {
                for (std::uint32_t block = 0; block < width; ++block) {
                    std::int32_t k = table[plane(pool, rows[row], 0) + block];
                    std::int32_t v = table[plane(pool, rows[row], 1) + block];
                    if (layout == OffsetLayout::v2) {
                        v = k == kBadPage ? 0 : k * scale.scale[pool] + scale.v_offset[pool];
                        k = k == kBadPage ? 0 : k * scale.scale[pool];
                    }
                    to.expected[plane(pool, row, 0) + block] = k;
                    to.expected[plane(pool, row, 1) + block] = v;
                }
            }
        }
    }
    // After a synchronization.
    void expect_arrived(const Target& to) { EXPECT_EQ(values(to.words), to.expected); }

    static constexpr PageScale kScale{{2, 6}, {1, 3}};
    const PageScale scale = kScale;
    Size size;
    OffsetLayout layout = OffsetLayout::v1;
    Words table;
    std::optional<OffsetStager> stager;
};

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
        std::ranges::fill(table, 123456);  // plain stores: ThreadSanitizer would see a read that is pending
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
    probe.synchronize(stream);  // throws if memory went before the work that uses it
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

INSTANTIATE_TEST_SUITE_P(Stagers, EveryStager,
                         ::testing::Values(Case{OffsetLayout::v1, StagerMode::snapshot},
                                           Case{OffsetLayout::v2, StagerMode::snapshot},
                                           Case{OffsetLayout::v2, StagerMode::snapshot, false},
                                           Case{OffsetLayout::v1, StagerMode::device_table},
                                           Case{OffsetLayout::v2, StagerMode::device_table}),
                         [](const auto& named) {
                             return std::string(named.param.layout == OffsetLayout::v1 ? "V1" : "V2") +
                                    (named.param.mode == StagerMode::snapshot ? "Snapshot" : "DeviceTable") +
                                    (named.param.kernels ? "" : "WithoutKernels");
                         });

TEST_F(StagerTest, WithoutKernelsPagesWrapAroundLikeTheGpus) {
    make({OffsetLayout::v2, StagerMode::snapshot, false}, {.pools = 1, .rows = 1, .blocks = 1});
    Target to = target();
    table[0] = std::numeric_limits<std::int32_t>::max();
    stager->ship(shipment(to, {0}, 1, stream), 1);
    probe.synchronize(stream);
    EXPECT_EQ(values(to.words), (std::vector<std::int32_t>{-2, -1}));
}

TEST_F(StagerTest, TheModeIsChosenBySizeAndByWhatTheDeviceCanDo) {
    const auto mode_of = [&](Size with) {
        make({OffsetLayout::v1, StagerMode::automatic}, with);
        return stager->stats().mode;
    };
    EXPECT_EQ(mode_of({1, 4, 16}), StagerMode::snapshot);
    EXPECT_EQ(mode_of({1, 64, 256}), StagerMode::device_table);
    probe.leave_kernels_out();
    EXPECT_EQ(mode_of({1, 64, 256}), StagerMode::snapshot);
    EXPECT_THROW(make({OffsetLayout::v1, StagerMode::device_table}, {}), std::invalid_argument);
}

class DeviceTableTest : public StagerTest {
  protected:
    // Three slots of 64 Ki entries for a table of 160 Ki: a ship that changes everything takes three slots.
    static constexpr Size kLarge{.pools = 1, .rows = 40, .blocks = 2048};
    void make_small() { make({OffsetLayout::v1, StagerMode::device_table}, {}); }
    Rows every_row() const {
        Rows rows(size.rows);
        std::iota(rows.begin(), rows.end(), 0U);
        return rows;
    }
    // Ships on a new stream, waits and compares.
    void expect_right_on_a_new_stream() {
        const StreamHandle fresh = probe.create_stream();
        Target to = target_on(fresh);
        ship(to, every_row(), size.blocks, fresh);
        probe.synchronize(fresh);
        expect_arrived(to);
    }
    Target target_on(StreamHandle on) {
        Target out{device_words(size.elements()), all(size.elements(), kUntouched)};
        fill(out.words, kUntouched, on);
        probe.sim().synchronize(on);
        return out;
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

TEST_F(DeviceTableTest, WithFewerSlotsThanEntriesNeedItWaitsInTheMiddle) {
    make({OffsetLayout::v1, StagerMode::device_table}, kLarge, 2);
    Target to = target();
    hold_until_wait(stream);
    number_table(1);
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
