// The pool is as large as was asked for, in pieces that no slot crosses, and comes back whole.
#include "lanes/host_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/reference.h"
#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kKey = 0x243f6a8885a308d3;

using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::size_t size) {
    std::mt19937_64 engine(size);
    Bytes bytes(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(engine()); });
    return bytes;
}

TEST(HostPoolPlanTest, RoundsDownToWholeBlocksAndNoFurther) {
    const HostPoolPlan plan = plan_host_pool(33 * 4096 + 4095, 4096, 0, 1 << 20, kPage);
    EXPECT_EQ(plan.slots, 33U);
    EXPECT_EQ(plan.bytes(), 33U * 4096);
}

TEST(HostPoolPlanTest, PiecesBeginOnPagesAndNoSlotCrossesThem) {
    for (const std::size_t block :
         {std::size_t{64}, std::size_t{1000}, std::size_t{4096}, std::size_t{6144}, std::size_t{3} << 20}) {
        for (const std::size_t tail : {0, 32}) {
            const HostPoolPlan plan = plan_host_pool(std::size_t{64} << 20, block, tail, 1 << 20, kPage);
            EXPECT_EQ(plan.slots_per_piece * plan.slot_bytes % kPage, 0U) << block;
            EXPECT_TRUE(plan.slots_per_piece * plan.slot_bytes <= 1 << 20 || block >= kPage) << block;
        }
    }
}

TEST(HostPoolPlanTest, ATailLiesBehindTheBlockAndMovesTheNextSlotToACacheLine) {
    for (const std::size_t block : {std::size_t{1000}, std::size_t{4096}, std::size_t{4096 + 32}}) {
        const HostPoolPlan plan = plan_host_pool(33 * 4096, block, 32, 1 << 20, kPage);
        EXPECT_GE(plan.slot_bytes, block + 32);
        EXPECT_LT(plan.slot_bytes, block + 32 + 64);
        EXPECT_EQ(plan.slot_bytes % 64, 0U);
        EXPECT_EQ(plan.slots, 33U * 4096 / plan.slot_bytes);
    }
    EXPECT_EQ(plan_host_pool(4096, 1001, 0, 1 << 20, kPage).slot_bytes, 1001U);
    EXPECT_THROW(plan_host_pool(4096, 4096, 1, 1 << 20, kPage), std::invalid_argument);
}

TEST(HostPoolPlanTest, RefusesAPoolOfNoBlock) {
    EXPECT_THROW(plan_host_pool(4095, 4096, 0, 1 << 20, kPage), std::invalid_argument);
    EXPECT_THROW(plan_host_pool(4096, 0, 0, 1 << 20, kPage), std::invalid_argument);
}

class HostPoolTest : public StagingTest {
  protected:
    const HostPoolPlan plan = plan_host_pool(100 * 4096, 4096, 0, 16 * 4096, kPage);
};

TEST_F(HostPoolTest, IsPinnedPieceByPieceAndGivenBack) {
    std::uintptr_t first = 0;
    {
        const HostPool pool(device, plan, {});
        first = pool.address();
        EXPECT_EQ(plan.pieces(), 7U);
        EXPECT_EQ(pool.bytes_pinned(), 100U * 4096);
        for (std::size_t slot = 0; slot < plan.slots; ++slot) {
            EXPECT_TRUE(is_mapped(reinterpret_cast<void*>(first + slot * 4096)));
        }
        EXPECT_FALSE(is_mapped(reinterpret_cast<void*>(first + 100 * 4096)));
    }
    EXPECT_FALSE(is_mapped(reinterpret_cast<void*>(first)));
}

TEST_F(HostPoolTest, SharedPagesAreThoseThatAnotherMappingSees) {
    const HostPool pool(device, plan, {.numa_node = {}, .shared = true});
    auto* const slots = reinterpret_cast<std::uint8_t*>(pool.address());
    void* const second = ::mmap(nullptr, plan.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, pool.descriptor(), 0);
    ASSERT_NE(second, MAP_FAILED);
    slots[99 * 4096] = 7;
    EXPECT_EQ(static_cast<std::uint8_t*>(second)[99 * 4096], 7);
    static_cast<std::uint8_t*>(second)[1] = 9;
    EXPECT_EQ(slots[1], 9);
    EXPECT_EQ(pool.bytes_pinned(), plan.bytes());
    ::munmap(second, plan.bytes());
}

TEST_F(HostPoolTest, SharesNothingUnasked) { EXPECT_EQ(HostPool(device, plan, {}).descriptor(), -1); }

TEST_F(HostPoolTest, WhatTheDeviceRefusesLeavesNothingBehind) {
    probe.sim().unplug();
    EXPECT_THROW(HostPool(device, plan, {}), DeviceError);
}

TEST_F(HostPoolTest, ADigestShowsEveryChangedByte) {
    const HostPool pool(device, plan_host_pool(4 * 1001, 1001, 0, 1 << 20, kPage), {});
    auto* const bytes = reinterpret_cast<std::uint8_t*>(pool.address());
    const std::uint64_t slot[] = {2};
    const std::uint64_t before = pool.digests(slot, kKey).front();
    for (std::size_t at = 0; at < 1001; ++at) {
        bytes[2 * 1001 + at] ^= 1;
        EXPECT_NE(pool.digests(slot, kKey).front(), before) << at;
        bytes[2 * 1001 + at] ^= 1;
    }
    bytes[1001 * 3] ^= 1;
    EXPECT_EQ(pool.digests(slot, kKey).front(), before);
    const std::uint64_t beyond[] = {4};
    EXPECT_THROW(pool.digests(beyond, kKey), std::invalid_argument);
}

TEST_F(HostPoolTest, ADigestIsOfTheBlockWithoutItsTail) {
    const HostPool pool(device, plan_host_pool(4096, 1000, 32, 1 << 20, kPage), {});
    auto* const bytes = reinterpret_cast<std::uint8_t*>(pool.address());
    const std::size_t second = pool.plan().slot_bytes;
    const std::uint64_t slot[] = {1};
    const std::uint64_t before = pool.digests(slot, kKey).front();
    bytes[second - 1] ^= 1;
    bytes[second + 1000] ^= 1;
    EXPECT_EQ(pool.digests(slot, kKey).front(), before);
    bytes[second + 999] ^= 1;
    EXPECT_NE(pool.digests(slot, kKey).front(), before);
}

TEST_F(HostPoolTest, ADigestShowsEveryByteOfEverySize) {
    std::vector<std::uint8_t> bytes(100, 7);
    std::set<std::uint64_t> of_sizes;
    for (std::size_t size = 0; size <= bytes.size(); ++size) {
        const std::span<const std::uint8_t> whole(bytes.data(), size);
        const std::uint64_t before = digest_of(whole, kKey);
        EXPECT_TRUE(of_sizes.insert(before).second) << size;
        for (std::size_t at = 0; at < bytes.size(); ++at) {
            bytes[at] ^= 0x80;
            EXPECT_EQ(digest_of(whole, kKey) != before, at < size) << size << ", byte " << at;
            bytes[at] ^= 0x80;
        }
    }
}

TEST_F(HostPoolTest, ADigestShowsWordsThatChangedPlaces) {
    const std::uint8_t one[] = {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};
    const std::uint8_t two[] = {2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_NE(digest_of(one, kKey), digest_of(two, kKey));
}

TEST_F(HostPoolTest, ADigestShowsPiecesThatChangedPlaces) {
    const Bytes bytes = random_bytes(4096);
    std::set<std::uint64_t> found{digest_of(bytes, kKey)};
    std::size_t swaps = 0;
    for (const std::size_t size : {8, 16, 64, 1024}) {
        for (std::size_t place = size; place < bytes.size(); place += size, ++swaps) {
            Bytes changed = bytes;
            std::swap_ranges(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(size),
                             changed.begin() + static_cast<std::ptrdiff_t>(place));
            found.insert(digest_of(changed, kKey));
        }
    }
    EXPECT_EQ(found.size(), swaps + 1);
}

// What KV really looks like: zeros, and rows that repeat. Here one piece of it moves along.
TEST_F(HostPoolTest, ADigestTellsEvenContentsApart) {
    std::set<std::uint64_t> found;
    std::size_t made = 0;
    for (const std::uint8_t value : Bytes{0x00, 0x01, 0x3f, 0x80, 0xff}) {
        for (std::size_t pieces = 1; pieces <= 256; ++pieces, ++made) {
            found.insert(digest_of(Bytes(16 * pieces, value), kKey));
        }
        for (std::size_t bit = 0; bit < 4096; ++bit, ++made) {
            Bytes even(512, value);
            even[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
            found.insert(digest_of(even, kKey));
        }
    }
    EXPECT_EQ(found.size(), made);
}

TEST_F(HostPoolTest, ADigestDependsOnEveryBitOfItsKey) {
    std::set<std::uint64_t> found;
    for (unsigned bit = 0; bit < 64; ++bit) {
        found.insert(digest_of(Bytes(64, 0), kKey ^ std::uint64_t{1} << bit));
    }
    EXPECT_EQ(found.size(), 64U);
}

TEST_F(HostPoolTest, TheKernelMakesTheDigestOfTheHost) {
    for (const std::size_t layer_bytes : {16, 48, 4096, 65552}) {
        for (const std::uint32_t parts : {1, 2, 7, 5000}) {
            constexpr std::uint32_t kLayers = 3;
            const HostPool pool(device, plan_host_pool(4 * kLayers * layer_bytes, layer_bytes, 0, 1 << 20, kPage), {});
            std::ranges::copy(random_bytes(pool.plan().bytes()), reinterpret_cast<std::uint8_t*>(pool.address()));
            const std::uint64_t blocks[] = {pool.address() + 3 * kLayers * layer_bytes, pool.address()};
            std::vector<std::uint64_t> sums(2 * kLayers * parts);
            run_reference(DigestBlocks{blocks, sums.data(), 2, kLayers, parts, layer_bytes, kKey});
            const std::uint64_t slots[] = {9, 10, 11, 0, 1, 2};
            const std::vector<std::uint64_t> digests = pool.digests(slots, kKey);
            for (std::size_t layer = 0; layer < digests.size(); ++layer) {
                const auto first = sums.begin() + static_cast<std::ptrdiff_t>(layer * parts);
                EXPECT_EQ(std::accumulate(first, first + parts, std::uint64_t{layer_bytes}), digests[layer])
                    << layer_bytes << " bytes in " << parts << " parts";
            }
        }
    }
}

}  // namespace
}  // namespace kvfix
