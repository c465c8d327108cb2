// The reference kernels, against values worked out by hand. They run on plain memory.
#include "kernels/reference.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <vector>

namespace kvfix {
namespace {

using Ints = std::vector<std::int32_t>;
constexpr std::int32_t kUntouched = 99;

PageScale two_scales() {
    PageScale scale{};
    scale.scale[0] = 2;
    scale.v_offset[0] = 1;
    scale.scale[1] = 10;
    scale.v_offset[1] = 5;
    return scale;
}

TEST(Reference, ExpandRowsScalesAndLeavesTheRestAlone) {
    // Two pools, one of two rows, two of three blocks.
    Ints target(std::size_t{2} * 2 * 2 * 3, kUntouched);
    const Ints staged{3, kBadPage, 0, 7};
    run_reference(ExpandRows{{target.data(), 12, 3}, staged.data(), 2, 1, 2, two_scales()});
    EXPECT_EQ(target, (Ints{6, 0,  99, 7, 0,  99, 99, 99, 99, 99, 99, 99,  //
                            0, 70, 99, 5, 75, 99, 99, 99, 99, 99, 99, 99}));
}

TEST(Reference, ExpandRowsWrapsAroundLikeTheGpu) {
    Ints target(2, kUntouched);
    const Ints staged{std::numeric_limits<std::int32_t>::max()};
    PageScale scale{};
    scale.scale[0] = 2;
    scale.v_offset[0] = 3;
    run_reference(ExpandRows{{target.data(), 2, 1}, staged.data(), 1, 1, 1, scale});
    EXPECT_EQ(target, (Ints{-2, 1}));
}

TEST(Reference, GatherHostRowsReadsPlaneZeroOfTheIndexedRows) {
    // Two pools of two rows of (K0 K1 | V0 V1); the V plane must not be read.
    const Ints table{1, 2, 50, 50, 3, 4,        50, 50,  //
                     5, 6, 50, 50, 7, kBadPage, 50, 50};
    const Ints copy_index{1, 0};
    Ints target(std::size_t{2} * 2 * 2 * 2, kUntouched);
    run_reference(GatherHostRows{{target.data(), 8, 2}, table.data(), 8, 2, copy_index.data(), 2, 2, 2, two_scales()});
    EXPECT_EQ(target, (Ints{6, 8, 7, 9, 2, 4, 3, 5,  //
                            70, 0, 75, 0, 50, 60, 55, 65}));
}

TEST(Reference, GatherHostRowsFromATableOfAnotherWidth) {
    // One pool of two rows of (K0 K1 K2 | V0 V1 V2), into planes of two blocks.
    const Ints table{1, 2, 3, 50, 50, 50, 4, 5, 6, 50, 50, 50};
    const Ints copy_index{1};
    Ints target(4, kUntouched);
    run_reference(GatherHostRows{{target.data(), 4, 2}, table.data(), 12, 3, copy_index.data(), 1, 1, 2, two_scales()});
    EXPECT_EQ(target, (Ints{8, 10, 9, 11}));
}

TEST(Reference, GatherDeviceRowsCopiesBothPlanesAsTheyAre) {
    // One pool of two rows of (K0 K1 | V0 V1).
    const Ints table{1, 2, 3, 4, 5, kBadPage, 7, 8};
    const std::array<std::uint32_t, 2> rows{1, 0};
    Ints target(12, kUntouched);
    run_reference(GatherDeviceRows{{target.data(), 12, 2}, table.data(), 8, 4, rows.data(), 1, 2, 2, 2, two_scales()});
    EXPECT_EQ(target, (Ints{5, kBadPage, 7, 8, 1, 2, 3, 4, 99, 99, 99, 99}));
}

TEST(Reference, GatherDeviceRowsFromATableOfAnotherWidth) {
    const std::array<std::uint32_t, 1> rows{1};
    const Ints wide{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // two rows of (K0 K1 K2 | V0 V1 V2)
    Ints target(4, kUntouched);
    run_reference(GatherDeviceRows{{target.data(), 4, 2}, wide.data(), 12, 6, rows.data(), 1, 1, 2, 2, two_scales()});
    EXPECT_EQ(target, (Ints{7, 8, 10, 11}));
    const Ints narrow{1, 2, 3, 4};  // two rows of (K0 | V0)
    target = Ints(4, kUntouched);
    run_reference(GatherDeviceRows{{target.data(), 4, 2}, narrow.data(), 4, 2, rows.data(), 1, 1, 1, 2, two_scales()});
    EXPECT_EQ(target, (Ints{3, 99, 4, 99}));
}

TEST(Reference, GatherDeviceRowsScalesASinglePlane) {
    // Two pools of two rows of one plane of two blocks; one column.
    const Ints table{1, 2, 3, 4, 5, 6, 7, 8};
    const std::array<std::uint32_t, 1> rows{1};
    Ints target(8, kUntouched);
    run_reference(GatherDeviceRows{{target.data(), 4, 2}, table.data(), 4, 2, rows.data(), 2, 1, 1, 1, two_scales()});
    EXPECT_EQ(target, (Ints{6, 99, 7, 99, 70, 99, 75, 99}));
}

TEST(Reference, CopyBlocksCopiesWholeBlocks) {
    alignas(16) std::array<char, 96> memory;
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = static_cast<char>(i);
    }
    const auto at = [&](std::size_t offset) { return reinterpret_cast<std::uint64_t>(memory.data()) + offset; };
    const std::array pairs{BlockPair{at(64), at(0)}, BlockPair{at(32), at(16)}};
    run_reference(CopyBlocks{pairs.data(), 2, 16});
    EXPECT_EQ(std::memcmp(&memory[64], &memory[0], 16), 0);
    EXPECT_EQ(std::memcmp(&memory[32], &memory[16], 16), 0);
    EXPECT_EQ(memory[48], 48);
    EXPECT_EQ(memory[80], 80);
}

TEST(Reference, FillWordsFills) {
    std::vector<std::uint32_t> words(4, 1);
    run_reference(FillWords{words.data() + 1, 2, 8});
    EXPECT_EQ(words, (std::vector<std::uint32_t>{1, 8, 8, 1}));
}

}  // namespace
}  // namespace kvfix
