// The driver call that a copy becomes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "cuda_test.h"

namespace kvfix::cuda {
namespace {

class CudaCopies : public CudaTest {
  protected:
    CudaCopies() { std::iota(src_.begin(), src_.end(), std::uint8_t{1}); }

    // Three spans, one of them empty.
    std::array<CopySpan, 3> spans() {
        const auto src = reinterpret_cast<std::uintptr_t>(src_.data());
        const auto dst = reinterpret_cast<std::uintptr_t>(dst_.data());
        return {CopySpan{dst, src, 8}, CopySpan{dst + 8, src + 8, 0}, CopySpan{dst + 16, src + 16, 4}};
    }
    void expect_copied() {
        std::array<std::uint8_t, 32> expected{};
        std::copy_n(src_.begin(), 8, expected.begin());
        std::copy_n(src_.begin() + 16, 4, expected.begin() + 16);
        EXPECT_EQ(dst_, expected);
        dst_ = {};
    }

    static Stream stream(std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); }

    std::array<std::uint8_t, 32> src_{};
    std::array<std::uint8_t, 32> dst_{};
};

TEST_F(CudaCopies, ABatchIsOneCallFromCuda12_8On) {
    for (const int version : {kVersion12_8, 12090, kVersion13_0, 13020}) {
        fake::reset();
        state().version = version;
        const Driver driver(kLibrary);
        const PrimaryContext context(driver, 0);
        EXPECT_TRUE(Copies(context).has_batch()) << version;
        Copies(context).batch(spans(), SourceOrder::any, stream(0x20));
        expect_copied();
        EXPECT_EQ(std::ranges::count(state().calls, "cuMemcpyBatchAsync"), 1) << version;
        EXPECT_FALSE(state().called("cuMemcpyAsync"));
    }
}

TEST_F(CudaCopies, ABatchIsALoopBeforeCuda12_8) {
    state().version = 12060;
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    EXPECT_FALSE(Copies(context).has_batch());
    Copies(context).batch(spans(), SourceOrder::any, stream(0x20));
    expect_copied();
}

TEST_F(CudaCopies, ABatchOnTheDefaultStreamIsALoopBecauseTheDriverRefusesIt) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    for (const std::uintptr_t handle : {std::uintptr_t{0}, kLegacyStream}) {
        Copies(context).batch(spans(), SourceOrder::stream, stream(handle));
        expect_copied();
    }
    EXPECT_FALSE(state().called("cuMemcpyBatchAsync"));
}

TEST_F(CudaCopies, TheSourceOrderCoversTheWholeBatch) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    for (const auto& [order, expected] :
         {std::pair{SourceOrder::stream, kAccessOrderStream}, std::pair{SourceOrder::any, kAccessOrderAny}}) {
        Copies(context).batch(spans(), order, stream(0x20));
        EXPECT_EQ(state().access_order, expected);
        EXPECT_EQ(state().attribute_sets, 1U);
        EXPECT_EQ(state().first_copy, 0U);
    }
}

TEST_F(CudaCopies, NothingToCopyIsNoCall) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    const Copies copies(context);
    copies.batch({}, SourceOrder::stream, stream(0x20));
    copies.batch(std::array{CopySpan{1, 2, 0}}, SourceOrder::stream, stream(0x20));
    copies.rows({.dst = 1, .dst_pitch = 8, .src = 2, .src_pitch = 8, .row_bytes = 8, .rows = 0}, stream(0x20));
    EXPECT_FALSE(state().called("cuMemcpyBatchAsync"));
    EXPECT_FALSE(state().called("cuMemcpy2DAsync"));
}

TEST_F(CudaCopies, RowsHavePitchesOfTheirOwn) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    RowCopy rows{.dst = reinterpret_cast<std::uintptr_t>(dst_.data()),
                 .dst_pitch = 10,
                 .src = reinterpret_cast<std::uintptr_t>(src_.data()),
                 .src_pitch = 5,
                 .row_bytes = 3,
                 .rows = 2};
    Copies(context).rows(rows, stream(0x20));
    std::array<std::uint8_t, 32> expected{};
    std::copy_n(src_.begin(), 3, expected.begin());
    std::copy_n(src_.begin() + 5, 3, expected.begin() + 10);
    EXPECT_EQ(dst_, expected);
    rows.row_bytes = 6;
    EXPECT_EQ(error_of([&] { Copies(context).rows(rows, stream(0x20)); }),
              "copy_rows: row_bytes is 6, more than a pitch (src 5, dst 10); usual cause: elements counted instead of "
              "bytes");
}

}  // namespace
}  // namespace kvfix::cuda
