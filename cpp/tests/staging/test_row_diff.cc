// The comparison of a live row with its shadow, against a loop that anybody can check.
#include "staging/row_diff.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace kvfix {
namespace {

using Row = std::vector<std::int32_t>;
using Entries = std::vector<std::pair<std::size_t, std::int32_t>>;

constexpr std::size_t kLengthMax = 70;
constexpr std::size_t kMargin = 5;  // in front: rows begin anywhere; behind: must not be looked at

Entries differences(const Row& live, const Row& shadow, std::size_t begin, std::size_t count) {
    Entries out;
    for (std::size_t i = 0; i < count; ++i) {
        if (live[begin + i] != shadow[begin + i]) {
            out.emplace_back(i, live[begin + i]);
        }
    }
    return out;
}

void expect_as_loop(const Row& live, const Row& shadow, std::size_t begin, std::size_t count) {
    Row updated = shadow;
    Entries emitted;
    update_shadow(live.data() + begin, updated.data() + begin, count,
                  [&](std::size_t index, std::int32_t value) { emitted.emplace_back(index, value); });
    Row expected = shadow;
    std::copy_n(live.begin() + static_cast<std::ptrdiff_t>(begin), count,
                expected.begin() + static_cast<std::ptrdiff_t>(begin));
    ASSERT_EQ(emitted, differences(live, shadow, begin, count)) << "length " << count << ", begin " << begin;
    ASSERT_EQ(updated, expected) << "length " << count << ", begin " << begin;
}

TEST(RowDiff, EmitsWhatALoopEmitsAtEveryLength) {
    std::mt19937 random(7);
    for (std::size_t count = 0; count <= kLengthMax; ++count) {
        for (std::size_t begin = 0; begin < kMargin; ++begin) {
            // From nothing changed to everything changed; the margins always differ.
            for (const unsigned one_in : {1U, 2U, 9U, 40U, 1000000U}) {
                const Row shadow(2 * kMargin + kLengthMax, 3);
                Row live(shadow.size(), -3);
                for (std::size_t i = begin; i < begin + count; ++i) {
                    live[i] = random() % one_in == 0 ? static_cast<std::int32_t>(random()) : 3;
                }
                expect_as_loop(live, shadow, begin, count);
            }
        }
    }
}

TEST(RowDiff, FindsASingleChangeAtEveryPlace) {
    const Row shadow(2 * kMargin + kLengthMax, -1);
    for (std::size_t count = 1; count <= kLengthMax; ++count) {
        for (std::size_t at = 0; at < count; ++at) {
            Row live = shadow;
            live[kMargin + at] = 0;
            expect_as_loop(live, shadow, kMargin, count);
        }
    }
}

// Packing 32-bit comparisons into 16 and 8 bits must not lose one that differs in some bits only.
TEST(RowDiff, FindsAChangeOfEveryBit) {
    const Row shadow(kDiffGroup, 0x5a5a5a5a);
    for (int bit = 0; bit < 31; ++bit) {
        Row live = shadow;
        live[11] ^= 1 << bit;
        expect_as_loop(live, shadow, 0, kDiffGroup);
    }
}

}  // namespace
}  // namespace kvfix
