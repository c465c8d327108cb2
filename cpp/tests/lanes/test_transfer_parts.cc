// By DMA the streams of a lane share the blocks of a transfer. By kernel they do not, and both kinds fail alone.
#include <future>

#include "tests/lanes/lane_fixture.h"

#ifdef __SANITIZE_ADDRESS__
// A lane's thread makes new slots where a kernel has failed, and keeps those that the device may still read.
// KeepsMemoryOnPurpose speaks for its own thread alone.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:kvfix::LaneLoop::make_kernel_copies"; }
#endif

namespace kvfix {
namespace {

TEST_F(TransferLaneTest, EveryStreamThatHasAShareWaitsForTheMark) {
    reopen({.streams = 2, .shared_bytes_min = 0});
    for (std::int32_t i = 1; i <= 20; ++i) {
        const GateHandle gate = probe.close_gate(stream);
        fill(block, i, stream);
        const auto number = enqueue(shares(), marks->set(stream));
        EXPECT_FALSE(lane->wait(*number, milliseconds{1}));
        EXPECT_EQ(values(host), all(kWords, i - 1));
        probe.open_gate(gate);
        ASSERT_EQ(ended(number).error, "");
        ASSERT_EQ(values(host), all(kWords, i));
    }
}

// Whichever of its copies fails: the transfer ends once all have ended, with the error, and the next one runs.
TEST_F(TransferLaneTest, AShareThatFailsTakesItsTransferDownAndNoOther) {
    reopen({.streams = 2, .shared_bytes_min = 0});
    for (std::uint64_t share = 1; share <= 2; ++share) {
        probe.sim().fail_operation(share);
        EXPECT_CONTAINS(ended(enqueue(shares(), nullptr)).error, "on request") << share;
        EXPECT_EQ(ended(enqueue(shares(), nullptr)).error, "") << share;
    }
    EXPECT_EQ(lane->stats().failed, 2U);
    EXPECT_EQ(lane->stats().by_kernel, 0U);
}

// One share refused at the call while another is held on its stream: the memory stays the device's until that one has ended.
TEST_F(TransferLaneTest, ARefusedShareWaitsForTheOthers) {
    const StreamHandle before = probe.create_stream();
    reopen({.streams = 2, .shared_bytes_min = 0});
    const GateHandle gate = probe.close_gate({before.value + 1});  // the lane's first stream
    std::vector<CopySpan> spans = shares();
    spans.back().dst = 1;
    const auto number = enqueue(spans, nullptr);
    EXPECT_FALSE(lane->wait(*number, kShort)) << "the first share is held";
    probe.open_gate(gate);
    EXPECT_CONTAINS(ended(number).error, "copy destination");
}

// The device has something to do after the first 32 blocks, and while the driver takes the next call.
TEST_F(TransferLaneTest, ALongTransferBeginsWithAShortPart) {
    const StreamHandle before = probe.create_stream();
    reopen({.shared_bytes_min = 0});
    const std::vector<CopySpan> many(2048, span_of(host.first(2), block.first(2)));
    EXPECT_EQ(ended(enqueue(many, nullptr)).error, "");
    std::vector<std::size_t> blocks;
    for (const ProbeDevice::Batch& batch : probe.batches()) {
        EXPECT_EQ(batch.stream.value, before.value + 1 + blocks.size() % 4) << blocks.size();
        blocks.push_back(batch.spans);
    }
    EXPECT_EQ(blocks, (std::vector<std::size_t>{32, 64, 128, 256, 512, 512, 512, 32}));
}

// Of more than 2,048 blocks a transfer may have more parts than fit: the thread waits for the first ones, and goes on.
TEST_F(TransferLaneTest, ATransferOfManyPartsWaitsForItsFirstOnes) {
    reopen({.in_flight_max = 1, .shared_bytes_min = 0});
    const GateHandle gate = probe.close_gate(stream);
    fill(block, 7, stream);
    const std::vector<CopySpan> many(8192, span_of(host, block));
    std::promise<void> waits;
    probe.at_next_wait([&] { waits.set_value(); });
    const auto number = enqueue(many, marks->set(stream));
    waits.get_future().wait();
    EXPECT_EQ(probe.batches().size(), 8U);
    EXPECT_EQ(lane->stats().queued, 1U);
    probe.open_gate(gate);
    EXPECT_EQ(ended(number).error, "");
    EXPECT_EQ(probe.batches().size(), 20U);
    EXPECT_EQ(values(host), all(kWords, 7));
}

TEST_F(TransferLaneTest, SmallBlocksKeepToOneStream) {
    reopen({.streams = 2, .shared_bytes_min = 9});
    probe.sim().fail_operation(2);  // which would be the second share
    EXPECT_EQ(ended(enqueue(shares(), nullptr)).error, "");
    EXPECT_CONTAINS(ended(enqueue(shares(), nullptr)).error, "on request");
}

TEST_F(TransferLaneTest, ByKernelAStoreRunsBehindItsMarkAsWell) {
    reopen({.kernel_sms = 2});
    for (std::int32_t i = 1; i <= 20; ++i) {
        const GateHandle gate = probe.close_gate(stream);
        fill(block, i, stream);
        const auto number = store(marks->set(stream));
        EXPECT_FALSE(lane->wait(*number, milliseconds{1}));
        probe.open_gate(gate);
        ASSERT_EQ(ended(number).error, "");
        ASSERT_EQ(values(host), all(kWords, i));
    }
    EXPECT_EQ(lane->stats().by_kernel, 20U);
    EXPECT_EQ(ended(enqueue({span_of(host.first(1), block.first(1))}, nullptr)).error, "");
    EXPECT_EQ(lane->stats().by_kernel, 20U) << "four bytes went by DMA";
}

TEST_F(TransferLaneTest, AFailedKernelEndsItsTransferAndTheLaneGoesOnWithOtherStreamsAndSlots) {
    const KeepsMemoryOnPurpose keeps;  // slots whose kernel failed
    reopen({.in_flight_max = 2, .kernel_sms = 2});
    for (int i = 0; i < 4; ++i) {  // more often than there are slots
        probe.sim().fail_operation(1);
        EXPECT_CONTAINS(ended(store()).error, "on request");
        EXPECT_EQ(ended(store()).error, "");
    }
    probe.refuse_launch(1);
    EXPECT_CONTAINS(ended(store()).error, "launch refused");
    EXPECT_EQ(ended(store()).error, "");
    EXPECT_EQ(lane->stats().failed, 5U);
    EXPECT_FALSE(lane->stats().broken);
}

}  // namespace
}  // namespace kvfix
