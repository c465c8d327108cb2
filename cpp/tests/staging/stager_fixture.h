// Common parts of the tests of the stagers: a live table in pinned memory, and destinations with the values that they
// should hold.
#pragma once

#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "staging/offset_stager.h"
#include "tests/staging/staging_fixture.h"

namespace kvfix {

using Rows = std::vector<std::uint32_t>;
inline constexpr std::int32_t kUntouched = -7;

struct Case {
    OffsetLayout layout;
    StagerMode mode;
    bool kernels = true;
};

inline constexpr std::array kEveryCase{
    Case{OffsetLayout::v1, StagerMode::snapshot}, Case{OffsetLayout::v2, StagerMode::snapshot},
    Case{OffsetLayout::v2, StagerMode::snapshot, false}, Case{OffsetLayout::v1, StagerMode::early_copy},
    Case{OffsetLayout::v2, StagerMode::early_copy}};

inline std::string name_of(const Case& of) {
    return std::string(of.layout == OffsetLayout::v1 ? "V1" : "V2") +
           (of.mode == StagerMode::snapshot ? "Snapshot" : "EarlyCopy") + (of.kernels ? "" : "WithoutKernels");
}

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
        table = pinned(size.elements());  // pinned, so that a stager could let the device read it in place
        if (!of.kernels) {
            probe.leave_kernels_out();
        }
        stager.emplace(device,
                       StagerConfig{.layout = layout,
                                    .num_pools = size.pools,
                                    .rows_max = size.rows,
                                    .blocks_max = size.blocks,
                                    .slots = slots,
                                    .scale = scale,
                                    .late_after = late_after},
                       of.mode);
    }
    Target target() { return target(stream); }
    Target target(StreamHandle on) {
        Target out{device_words(size.elements()), all(size.elements(), kUntouched)};
        fill(out.words, kUntouched, on);
        probe.sim().synchronize(on);
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
    // The expected values, written from what the layouts promise.
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
    // Call it after a synchronization.
    void expect_arrived(const Target& to) { EXPECT_EQ(values(to.words), to.expected); }

    const PageScale scale{{2, 6}, {1, 3}};
    Size size;
    OffsetLayout layout = OffsetLayout::v1;
    Words table;
    // for the next stager; by default a copy is never late
    std::optional<std::chrono::nanoseconds> late_after = std::chrono::minutes(1);
    std::optional<OffsetStager> stager;
};

}  // namespace kvfix
