// What a caller can drive up stays cheap however the calls are chosen. Counted are steps (core/steps.h), not time.
#include "core/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

#include "core/eviction_queue.h"

namespace kvfix {
namespace {

template <class Call>
std::uint64_t steps_of(Call&& call) {
    const std::uint64_t before = steps_taken;
    call();
    return steps_taken - before;
}

std::vector<BlockIndex> ascending(std::uint32_t count) {
    std::vector<BlockIndex> blocks(count);
    std::iota(blocks.begin(), blocks.end(), 0U);
    return blocks;
}

// ------------------------------------------------------------------------------------------------ eviction

// All are parked, come back in this order, and go.
std::uint64_t steps_of_return(const std::vector<BlockIndex>& order) {
    const auto blocks = static_cast<std::uint32_t>(order.size());
    EvictionQueue queue(blocks);
    for (BlockIndex block = 0; block < blocks; ++block) {
        queue.push(block, kPriorityDefault);
    }
    return steps_of([&] {
        EXPECT_EQ(queue.victim([](BlockIndex) { return true; }), 0U);
        for (const BlockIndex block : order) {
            queue.unpark(block);
        }
        for (BlockIndex block = 0; block < blocks; ++block) {
            ASSERT_EQ(queue.victim([](BlockIndex) { return false; }), block);
            queue.remove(block);
        }
    });
}

TEST(Steps, ParentsComeBackInAnyOrderWithoutPassingEachOther) {
    constexpr std::uint32_t kBlocks = 4096;
    constexpr std::uint64_t kMost = 4ULL * kBlocks * std::bit_width(kBlocks);  // into and out of two heaps
    std::vector<BlockIndex> order = ascending(kBlocks);
    EXPECT_LE(steps_of_return(order), kMost);
    std::ranges::reverse(order);
    EXPECT_LE(steps_of_return(order), kMost);
    std::ranges::shuffle(order, std::mt19937_64(1));
    EXPECT_LE(steps_of_return(order), kMost);
}

}  // namespace
}  // namespace kvfix
