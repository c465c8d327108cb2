// Which lines of the table a shipment looks at, and how entries share a slot.
#include "staging/table_lines.h"

#include <thread>

#include "staging/entry_writer.h"
#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

TEST(TableLines, ARowThatStandsTwiceStandsOnce) {
    const StagerConfig config{.layout = OffsetLayout::v1, .num_pools = 2, .rows_max = 5, .blocks_max = 10};
    const std::vector<std::int32_t> table(std::size_t{2} * 4 * 2 * 8);  // smaller than the stager was made for
    const std::vector<std::uint32_t> rows{3, 1, 3, 3, 1};
    const Shipment shipment{.dst = {},
                            .table = {.data = table.data(),
                                      .pool_stride = 64,
                                      .row_stride = 16,
                                      .plane_stride = 8,
                                      .pools = 2,
                                      .rows = 4,
                                      .blocks = 8},
                            .rows = rows,
                            .width = 8,
                            .stream = {}};
    TableLines lines(config);
    for (int again = 0; again < 2; ++again) {
        std::vector<std::ptrdiff_t> live;
        std::vector<std::uint32_t> index;
        for (const TableLine& line : lines.of(shipment)) {
            live.push_back(line.live - table.data());
            index.push_back(line.index);
        }
        EXPECT_EQ(live, (std::vector<std::ptrdiff_t>{48, 56, 16, 24, 112, 120, 80, 88}));
        EXPECT_EQ(index, (std::vector<std::uint32_t>{60, 70, 20, 30, 160, 170, 120, 130}));
    }
}

class EntryWriterTest : public StagingTest {
  protected:
    static constexpr std::uint32_t kRoom = 1000;
    StagingRing ring{device, 2, kRoom * sizeof(TableEntry)};
    Words table = device_words(kRoom);
    EntryWriter writer{probe, ring, address_of(table.data()), kRoom, stream};
};

TEST_F(EntryWriterTest, ASlotTakesWhatItHasRoomForAllOrNothing) {
    const std::vector<TableEntry> entries(kRoom, TableEntry{1, 5});
    const auto put = [&](std::size_t count) { return writer.put(std::span(entries).first(count)); };
    EXPECT_TRUE(put(kRoom - 3));
    EXPECT_FALSE(put(4));
    EXPECT_TRUE(put(3));
    EXPECT_TRUE(put(0));
    EXPECT_FALSE(put(1));
    writer.turn();
    EXPECT_EQ(writer.total(), kRoom);
    EXPECT_TRUE(put(kRoom));
    std::move(writer.finish()).submit();
    EXPECT_EQ(writer.total(), 2 * kRoom);
}

TEST_F(EntryWriterTest, SeveralThreadsPutWithoutLosingAny) {
    std::vector<std::thread> threads;
    for (std::uint32_t number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            for (std::uint32_t i = number; i < kRoom; i += 4) {
                const TableEntry entry{i, static_cast<std::int32_t>(i) + 7};
                EXPECT_TRUE(writer.put(std::span(&entry, 1)));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    std::move(writer.finish()).submit();
    probe.synchronize(stream);
    for (std::uint32_t i = 0; i < kRoom; ++i) {
        ASSERT_EQ(table[i], static_cast<std::int32_t>(i) + 7);
    }
}

}  // namespace
}  // namespace kvfix
