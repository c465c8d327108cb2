// Kernels on the simulated device: arguments are judged at the launch, addresses when the kernel runs.
#include "sim_fixture.h"

namespace kvfix {
namespace {

class SimKernelTest : public SimDeviceTest {
  protected:
    static constexpr std::uint32_t kBlocks = 4;

    std::string run_error(const KernelCall& call) {
        const StreamHandle own = device.create_stream();
        device.launch(call, own);
        return error_of([&] { device.destroy_stream(own); });
    }
    std::string launch_error(const KernelCall& call) {
        return error_of([&] { device.launch(call, stream); });
    }
    OffsetDestination destination() const { return {target.data(), target.size() / 2, kBlocks}; }

    Words target = device_words(std::size_t{2} * 2 * 2 * kBlocks);  // two pools of two rows
    Words table = device_words(std::size_t{2} * 3 * kBlocks);       // two pools of three rows, K plane only
    Words host_table = pinned(std::size_t{2} * 2 * 2 * kBlocks);
    Words index = pinned(4);
};

TEST_F(SimKernelTest, BadArgumentsAreRefusedAtTheLaunch) {
    ExpandRows expand{destination(), table.data(), 65, 1, 1, {}};
    EXPECT_CONTAINS(launch_error(expand), "ExpandRows: pools is 65, at most 64");
    expand = {destination(), table.data(), 1, 1, 5, {}};
    EXPECT_CONTAINS(launch_error(expand), "width is 5, a plane of the destination has 4 blocks");
    GatherHostRows host{destination(), host_table.data(), 16, 4, index.data(), 2, 3, 4, {}};
    EXPECT_CONTAINS(launch_error(host), "GatherHostRows: rows is 3, which takes 24 elements of a pool");
    host = {destination(), host_table.data(), 16, 3, index.data(), 1, 1, 4, {}};
    EXPECT_CONTAINS(launch_error(host), "GatherHostRows: width is 4, a plane of the table has 3 blocks");
    const auto* rows = reinterpret_cast<const std::uint32_t*>(index.data());
    GatherDeviceRows gather{destination(), table.data(), 12, kBlocks, rows, 2, 1, 4, 3, {}};
    EXPECT_CONTAINS(launch_error(gather), "GatherDeviceRows: planes is 3");
    gather.planes = 2;
    EXPECT_CONTAINS(launch_error(gather), "width is 4, a plane of the table has 2 blocks");
    gather.table_row_stride = 9;
    EXPECT_CONTAINS(launch_error(gather), "table_row_stride is 9, not two planes of one size");
    EXPECT_CONTAINS(launch_error(CopyBlocks{nullptr, 0, 24}), "CopyBlocks: bytes is 24, not a multiple of 16");
    EXPECT_CONTAINS(launch_error(DigestBlocks{nullptr, nullptr, 1, 1, 1, 24, 0}),
                    "layer_bytes is 24, not a multiple of 16");
    EXPECT_CONTAINS(launch_error(DigestBlocks{nullptr, nullptr, 1, 1, 0, 16, 0}), "DigestBlocks: parts is 0");
    for (const auto& [count, layers, parts, layer_bytes] : {std::tuple{1U << 31, 1U, 1U, 16ULL},
                                                            {1U << 20, 1U << 11, 1U, 16ULL},
                                                            {1U << 20, 1U, 1U << 11, 16ULL},
                                                            {1U, 1U, 1U, 16ULL << 31}}) {
        EXPECT_CONTAINS(launch_error(DigestBlocks{nullptr, nullptr, count, layers, parts, layer_bytes, 0}),
                        "sums and pieces are counted in 31 bits");
    }
    device.synchronize(stream);
}

TEST_F(SimKernelTest, StrayAddressesBreakTheStream) {
    std::int32_t stray[64] = {};
    EXPECT_CONTAINS(run_error(ExpandRows{destination(), stray, 2, 2, 4, {}}), "staged pages: 64 bytes");
    const OffsetDestination bad{stray, 16, kBlocks};
    EXPECT_CONTAINS(run_error(ExpandRows{bad, table.data(), 1, 2, 4, {}}), "destination rows: 64 bytes");
    EXPECT_CONTAINS(run_error(FillWords{reinterpret_cast<std::uint32_t*>(stray), 3, 0}), "filled words: 12 bytes");
    const auto words = reinterpret_cast<std::uint32_t*>(target.data());
    EXPECT_CONTAINS(run_error(FillWords{words, std::uint64_t{1} << 62, 0}), "more bytes than there are addresses");
}

TEST_F(SimKernelTest, WildIndicesBreakTheStreamAndWriteNothing) {
    racy_fill(host_table, 1);
    GatherHostRows host{destination(), host_table.data(), 16, 4, index.data(), 1, 2, 4, {}};
    for (const std::int32_t row : {4, -1, INT32_MAX, INT32_MIN}) {
        index[1] = row;
        EXPECT_CONTAINS(run_error(host), "table row: 16 bytes");
    }
    const auto* rows = reinterpret_cast<const std::uint32_t*>(index.data());
    index[1] = 3;
    EXPECT_CONTAINS(run_error(GatherDeviceRows{destination(), table.data(), 12, kBlocks, rows, 2, 2, 4, 1, {}}),
                    "table row: 16 bytes");
    host.copy_index = index.data() + 3;
    EXPECT_CONTAINS(run_error(host), "copy index: 8 bytes");
    EXPECT_EQ(values(target), all(target.size(), static_cast<std::int32_t>(0xcdcdcdcd)));
}

TEST_F(SimKernelTest, BlocksMustBeTheDevicesAndAligned) {
    auto* pairs = static_cast<BlockPair*>(device.map_pinned(sizeof(BlockPair)));
    *pairs = {address_of(target.data()), address_of(table.data()) + 8};
    EXPECT_CONTAINS(run_error(CopyBlocks{pairs, 1, 16}), "source block at " + hex(pairs->src) + " is not 16-byte");
    *pairs = {address_of(target.data()) + 16, address_of(table.data())};
    EXPECT_CONTAINS(run_error(CopyBlocks{pairs, 1, 128}), "source block: 128 bytes");
    *pairs = {address_of(pairs) + 16, address_of(table.data())};
    EXPECT_CONTAINS(run_error(CopyBlocks{pairs, 1, 16}), "destination block: 16 bytes");
    auto* words = static_cast<std::uint64_t*>(device.map_pinned(2 * sizeof(std::uint64_t)));
    words[0] = address_of(table.data()) + 8;
    EXPECT_CONTAINS(run_error(DigestBlocks{words, words + 1, 1, 1, 1, 16, 0}), "is not 16-byte aligned");
    words[0] = address_of(table.data());
    EXPECT_CONTAINS(run_error(DigestBlocks{words, words + 1, 1, 1, 1, 128, 0}), "digested block: 128 bytes");
    EXPECT_CONTAINS(run_error(DigestBlocks{words, words + 1, 1, 1, 1024, 16, 0}), "sums: 8192 bytes");
}

}  // namespace
}  // namespace kvfix
