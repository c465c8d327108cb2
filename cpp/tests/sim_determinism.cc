// A hundred thousand random calls, twice. The same calls give the same state, and the state is right after each of
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/byte_program.h"

namespace kvfix {
namespace {

constexpr int kPrograms = 100;
constexpr int kCalls = 1000;

std::vector<std::uint8_t> random_bytes(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(100 * kCalls);
    std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(random()); });
    return bytes;
}

struct Trail {
    std::vector<std::uint64_t> digests;
    CacheCounters counters;
};

Trail run(std::uint64_t seed) {
    const std::vector<std::uint8_t> bytes = random_bytes(seed);
    testing::ByteProgram program(bytes);
    Trail trail;
    for (int call = 0; call < kCalls; ++call) {
        program.step();
        trail.digests.push_back(program.digest());
    }
    trail.counters = program.stats().total;
    program.wind_up();
    return trail;
}

TEST(SimDeterminism, AHundredThousandRandomCallsTwiceGiveEqualDigests) {
    CacheCounters seen;
    for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Trail first = run(seed);
        const Trail second = run(seed);
        ASSERT_EQ(first.digests, second.digests);
        seen.add(first.counters);
    }
    // A simulation that never reaches the interesting calls would prove nothing.
    EXPECT_GT(seen.blocks_reused_partial, 500U);
    EXPECT_GT(seen.blocks_onboarded, 500U);
    EXPECT_GT(seen.blocks_offloaded, 500U);
    EXPECT_GT(seen.blocks_copied, 500U);
    EXPECT_GT(seen.blocks_dropped, 500U);
    EXPECT_GT(seen.blocks_failed, 500U);
}

}  // namespace
}  // namespace kvfix
