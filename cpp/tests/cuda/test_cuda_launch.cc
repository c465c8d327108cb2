// Launch shapes: within the limits of every GPU, none for no work, and bounded where the GPU is shared.
#include <gtest/gtest.h>

#include "device/cuda_launch.h"

namespace kvfix::cuda {
namespace {

constexpr std::uint32_t kMultiprocessors = 132;

LaunchShape shape_of(const KernelCall& call) {
    return launch_shape(call, {.multiprocessors = kMultiprocessors, .copies_in_bulk = false});
}
LaunchShape shape_in_bulk(const KernelCall& call) {
    return launch_shape(call, {.multiprocessors = kMultiprocessors, .copies_in_bulk = true});
}

ExpandRows rows(std::uint32_t pools, std::uint32_t count, std::uint32_t width) {
    ExpandRows call{};
    call.pools = pools;
    call.rows = count;
    call.width = width;
    return call;
}

CopyBlocks blocks(std::uint32_t count, std::uint64_t bytes) {
    CopyBlocks call{};
    call.count = count;
    call.bytes = bytes;
    return call;
}

FillWords words(std::uint64_t count) {
    FillWords call{};
    call.count = count;
    return call;
}

DigestBlocks digests(std::uint32_t count, std::uint32_t layers, std::uint32_t parts) {
    return {nullptr, nullptr, count, layers, parts, 4096, 0};
}

TEST(CudaLaunch, NoWorkIsNotStarted) {
    EXPECT_TRUE(shape_of(digests(0, 4, 1)).empty());
    EXPECT_TRUE(shape_of(rows(0, 4, 4)).empty());
    EXPECT_TRUE(shape_of(rows(2, 0, 4)).empty());
    EXPECT_TRUE(shape_of(rows(2, 4, 0)).empty());
    EXPECT_TRUE(shape_of(words(0)).empty());
    EXPECT_TRUE(shape_of(blocks(0, 4096)).empty());
    EXPECT_TRUE(shape_of(blocks(7, 0)).empty());
}

TEST(CudaLaunch, ARowGetsAsManyThreadsAsItHasPieces) {
    EXPECT_EQ(shape_of(rows(1, 8, 1)), (LaunchShape{8, 1, 32}));
    EXPECT_EQ(shape_of(rows(3, 256, 257)), (LaunchShape{768, 1, 96}));
    EXPECT_EQ(shape_of(rows(1, 256, 4096)), (LaunchShape{256, 4, 256}));
}

TEST(CudaLaunch, HugeWorkStaysWithinTheLimitsOfAGpu) {
    constexpr std::uint32_t kMost = 0xFFFF'FFFF;
    for (const LaunchShape& shape :
         {shape_of(rows(8, kMost, kMost)), shape_of(words(std::uint64_t{1} << 40)), shape_of(blocks(kMost, kMost))}) {
        EXPECT_LE(shape.blocks_x, 0x7FFF'FFFFU);
        EXPECT_LE(shape.blocks_y, 0xFFFFU);
        EXPECT_LE(shape.threads, 1024U);
    }
}

TEST(CudaLaunch, ASumGetsAThreadBlockWhileThereIsRoom) {
    EXPECT_EQ(shape_of(digests(2, 3, 4)), (LaunchShape{24, 1, 256}));
    EXPECT_EQ(shape_of(digests(1 << 20, 1 << 10, 4)), (LaunchShape{4 * kMultiprocessors, 1, 256}));
}

TEST(CudaLaunch, CopyingBlocksTakesTheMultiprocessorsThatItMayAndNoMore) {
    EXPECT_EQ(shape_of(blocks(1, 16)), (LaunchShape{1, 1, 32}));
    EXPECT_EQ(shape_of(blocks(100'000, 1 << 20)), (LaunchShape{2, 1, 1024}));
    EXPECT_EQ(shape_in_bulk(blocks(1, 16)), (LaunchShape{1, 1, 32, kCopySharedBytes}));
    CopyBlocks call = blocks(100'000, 1 << 20);
    call.sms = 7;
    EXPECT_EQ(shape_in_bulk(call), (LaunchShape{7, 1, 32, kCopySharedBytes}));
    EXPECT_TRUE(shape_in_bulk(blocks(0, 4096)).empty());
}

}  // namespace
}  // namespace kvfix::cuda
