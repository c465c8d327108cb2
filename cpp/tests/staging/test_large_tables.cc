// Tables that are large enough for a team: the same promises, whoever does the work.
#include <random>
#include <thread>

#include "staging/shared_lines.h"
#include "tests/staging/stager_fixture.h"

namespace kvfix {
namespace {

struct LargeCase {
    Case of;
    unsigned workers;
};

// Neither the width nor the number of rows divides evenly by what a worker takes; a row has more than one piece.
constexpr Size kLarge{.pools = 2, .rows = 37, .blocks = kPieceMax + 13};

class LargeTable : public StagerTest, public ::testing::WithParamInterface<LargeCase> {
  protected:
    LargeTable() {
        team = std::make_shared<WorkerTeam>(GetParam().workers);
        make(GetParam().of, kLarge);
        to = target();
    }
    std::int32_t page() { return static_cast<std::int32_t>(random() % 1000) - 1; }
    void change(std::size_t entries) {
        for (; entries != 0; --entries) {
            table[random() % table.size()] = page();
        }
    }
    Rows some_rows() {
        Rows rows(1 + random() % size.rows);
        std::ranges::generate(rows, [&] { return static_cast<std::uint32_t>(random() % size.rows); });
        return rows;
    }
    Rows every_row() {
        Rows rows(size.rows);
        std::iota(rows.begin(), rows.end(), 0U);
        std::ranges::shuffle(rows, random);
        return rows;
    }

    std::mt19937 random{5};
    Target to;
};

TEST_P(LargeTable, IsLargeEnoughForATeam) {
    EXPECT_GE(size.elements() / 2 * sizeof(std::int32_t), kTeamBytesMin);
    EXPECT_GT(size.elements() / 2, 64U * 1024) << "and for more changes than one slot holds";
}

TEST_P(LargeTable, EverythingArrivesThoughTheSourceIsOverwritten) {
    for (const std::size_t changes : {size.elements(), std::size_t{0}, std::size_t{1}, size.elements() / 50}) {
        change(changes);
        const GateHandle gate = probe.close_gate(stream);
        ship(to, every_row(), size.blocks, stream);
        const std::vector<std::int32_t> kept(table.begin(), table.end());
        std::ranges::fill(table, 123456);  // plain stores: ThreadSanitizer would see a worker that still reads
        probe.open_gate(gate);
        probe.synchronize(stream);
        expect_arrived(to);
        std::ranges::copy(kept, table.begin());
    }
}

TEST_P(LargeTable, RowsMayStandTwiceAndWidthsMayVary) {
    for (int i = 0; i < 30; ++i) {
        change(random() % 3000);
        ship(to, some_rows(), static_cast<std::uint32_t>(random() % (size.blocks + 1)), stream);
    }
    probe.synchronize(stream);
    expect_arrived(to);
}

TEST_P(LargeTable, MoreChangesThanASlotHoldsTakeSeveralAndAreCountedOnce) {
    number_table(1);
    ship(to, every_row(), size.blocks, stream);
    probe.synchronize(stream);
    expect_arrived(to);
    if (GetParam().of.mode == StagerMode::device_table) {
        const std::size_t planes = planes_of(layout);
        EXPECT_EQ(stager->stats().entries_changed, size.elements() / 2 * planes);
        ship(to, every_row(), size.blocks, stream);
        EXPECT_EQ(stager->stats().entries_changed, size.elements() / 2 * planes) << "the shadow had it all";
    }
}

std::vector<LargeCase> large_cases() {
    std::vector<LargeCase> cases;
    for (const unsigned workers : {0U, 3U}) {
        for (const OffsetLayout layout : {OffsetLayout::v1, OffsetLayout::v2}) {
            for (const StagerMode mode : {StagerMode::snapshot, StagerMode::device_table}) {
                cases.push_back({{layout, mode}, workers});
            }
        }
        cases.push_back({{OffsetLayout::v2, StagerMode::snapshot, false}, workers});
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Tables, LargeTable, ::testing::ValuesIn(large_cases()), [](const auto& named) {
    const Case& of = named.param.of;
    return std::string(of.layout == OffsetLayout::v1 ? "V1" : "V2") +
           (of.mode == StagerMode::snapshot ? "Snapshot" : "DeviceTable") + (of.kernels ? "" : "WithoutKernels") +
           (named.param.workers == 0 ? "Alone" : "WithATeam");
});

// Two stagers share a team, each used from a thread of its own: whoever finds it busy works alone.
TEST_F(StagerTest, TwoStagersOnTwoThreadsShareATeam) {
    team = std::make_shared<WorkerTeam>(2);
    make({OffsetLayout::v2, StagerMode::device_table}, kLarge);
    number_table(3);
    Target to = target();
    Target more = target(other);
    OffsetStager second(device, stager->config(), StagerMode::device_table);  // with the same team
    const Rows rows{9,  3,  36, 0,  1,  2,  3,  4,  5,  6,  7,  8,  10, 11, 12, 13, 14, 15, 16,
                    17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34};
    std::thread thread([&] {
        for (int i = 0; i < 20; ++i) {
            second.ship(shipment(more, rows, size.blocks, other), size.rows);
        }
    });
    for (int i = 0; i < 20; ++i) {
        stager->ship(shipment(to, rows, size.blocks, stream), size.rows);
    }
    thread.join();
    expect(to, rows, size.blocks);
    expect(more, rows, size.blocks);
    probe.synchronize(stream);
    probe.synchronize(other);
    expect_arrived(to);
    expect_arrived(more);
}

TEST_F(StagerTest, AClosedStagerLetsItsTeamGo) {
    for (const StagerMode mode : {StagerMode::snapshot, StagerMode::device_table}) {
        OffsetStager one(device, {.rows_max = 1024, .blocks_max = 128}, mode);
        const std::weak_ptr<WorkerTeam> shared = WorkerTeam::shared();
        EXPECT_FALSE(shared.expired()) << "a table of this size asks for help";
        one.close();
        EXPECT_TRUE(shared.expired());
    }
}

}  // namespace
}  // namespace kvfix
