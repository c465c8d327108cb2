// Blocks that a kernel copies: in launches of one size each, from slots that stay until it has run, and nothing that it cannot move.
#include "lanes/kernel_copies.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

constexpr std::size_t kWords = 64;

class KernelCopiesTest : public StagingTest {
  protected:
    void enqueue(KernelCopies& copies, const std::vector<CopySpan>& spans) { copies.enqueue(spans, stream); }
    static bool takes(const std::vector<CopySpan>& spans) { return KernelCopies::takes(spans); }
    static Words part(Words words, std::size_t first, std::size_t count) { return words.subspan(first, count); }

    Words blocks = device_words(kWords);
    Words host = pinned(kWords);
};

TEST_F(KernelCopiesTest, MovesBlocksOfSeveralSizesBothWays) {
    KernelCopies copies(device, 2, 4);
    fill(part(blocks, 0, 32), 1, stream);
    fill(part(blocks, 32, 32), 2, stream);
    enqueue(copies,
            {span_of(part(host, 0, 16), part(blocks, 16, 16)), span_of(part(host, 16, 16), part(blocks, 48, 16)),
             span_of(part(host, 32, 4), part(blocks, 32, 4))});
    probe.synchronize(stream);
    std::vector<std::int32_t> expected = all(kWords, 0);
    std::fill_n(expected.begin(), 16, 1);
    std::fill_n(expected.begin() + 16, 20, 2);
    EXPECT_EQ(values(host), expected);
    enqueue(copies, {span_of(part(blocks, 60, 4), part(host, 0, 4))});
    probe.synchronize(stream);
    EXPECT_EQ(blocks[60], 1);
}

TEST_F(KernelCopiesTest, MoreBlocksThanASlotHoldsGoInSeveralLaunches) {
    constexpr std::size_t kBlocks = KernelCopies::kPairsPerLaunch + 3;
    const Words many = pinned(4 * kBlocks);
    const Words there = device_words(4 * kBlocks);
    std::vector<CopySpan> spans;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        many[4 * i] = static_cast<std::int32_t>(i);
        spans.push_back(span_of(part(there, 4 * (kBlocks - 1 - i), 4), part(many, 4 * i, 4)));
    }
    KernelCopies copies(device, 2, 4);
    enqueue(copies, spans);
    probe.synchronize(stream);
    for (std::size_t i = 0; i < kBlocks; ++i) {
        ASSERT_EQ(there[4 * (kBlocks - 1 - i)], static_cast<std::int32_t>(i));
    }
}

// The list of blocks belongs to the kernel until it has run: with all slots pending the next launch waits for the oldest.
TEST_F(KernelCopiesTest, ASlotIsWrittenAgainOnlyOnceItsKernelHasRun) {
    KernelCopies copies(device, 2, 2);
    hold_until_wait(stream);
    for (std::int32_t i = 0; i < 5; ++i) {
        fill(part(blocks, 0, 4), i + 1, stream);
        enqueue(copies, {span_of(part(host, 4 * static_cast<std::size_t>(i), 4), part(blocks, 0, 4))});
    }
    EXPECT_TRUE(opened) << "the third launch waited for the first";
    probe.synchronize(stream);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(host[4 * i], static_cast<std::int32_t>(i) + 1);
    }
}

TEST_F(KernelCopiesTest, TakesOnlyWhatMovesSixteenBytesAtATime) {
    EXPECT_TRUE(takes({{16, 32, 48}, {64, 80, 16}}));
    EXPECT_FALSE(takes({{16, 32, 48}, {72, 80, 16}}));
    EXPECT_FALSE(takes({{16, 40, 48}}));
    EXPECT_FALSE(takes({{16, 32, 40}}));
}

TEST_F(KernelCopiesTest, RefusesMoreMultiprocessorsThanThereAre) {
    EXPECT_NO_THROW(KernelCopies(device, probe.multiprocessors(), 1));
    EXPECT_THROW(KernelCopies(device, probe.multiprocessors() + 1, 1), std::invalid_argument);
    EXPECT_THROW(KernelCopies(device, 0, 1), std::invalid_argument);
    probe.leave_kernels_out();
    EXPECT_THROW(KernelCopies(device, 2, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvfix
