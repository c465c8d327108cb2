// A transfer ends once, after all of its parts: whichever ends first, fails or is refused.
#include <algorithm>
#include <future>
#include <numeric>

#include "tests/lanes/lane_fixture.h"

namespace kvfix {
namespace {

class TransferEndsTest : public TransferLaneTest {
  protected:
    // A lane whose parts go to two streams in turn.
    void share_between_two(std::size_t in_flight_max = 32) {
        const StreamHandle before = probe.create_stream();
        reopen({.in_flight_max = in_flight_max, .streams = 2, .shared_bytes_min = 0});
        first_stream = {before.value + 1};
        second_stream = {before.value + 2};
    }
    std::vector<CopySpan> many(std::size_t count) const { return {count, span_of(host, block)}; }
    std::vector<std::size_t> parts() {
        std::vector<std::size_t> sizes;
        for (const ProbeDevice::Batch& batch : probe.batches()) {
            sizes.push_back(batch.spans);
        }
        return sizes;
    }

    // A transfer of more parts than fit at once. It comes back when the lane's thread waits for room.
    std::optional<std::uint64_t> begun_without_room() {
        std::promise<void> waits;
        probe.at_next_wait([&] { waits.set_value(); });
        const auto number = enqueue(many(8192), marks->set(stream));
        waits.get_future().wait();
        return number;
    }

    StreamHandle first_stream, second_stream;
};

struct Cut {
    std::size_t blocks;
    std::vector<std::size_t> parts;
};

class CutTest : public TransferEndsTest, public ::testing::WithParamInterface<Cut> {};

TEST_P(CutTest, EveryBlockArrives) {
    share_between_two();
    const std::size_t count = GetParam().blocks;
    const Words from = pinned(std::max<std::size_t>(count, 1));
    const Words to = pinned(std::max<std::size_t>(count, 1));
    std::iota(from.begin(), from.end(), 1);
    std::vector<CopySpan> spans;
    for (std::size_t i = 0; i < count; ++i) {
        spans.push_back(span_of(to.subspan(i, 1), from.subspan(count - 1 - i, 1)));
    }
    const EndedTransfer end = ended(enqueue(spans, marks->set(stream)));
    EXPECT_EQ(end.error, "");
    EXPECT_EQ(end.bytes, 4 * count);
    EXPECT_EQ(parts(), GetParam().parts);
    EXPECT_TRUE(std::ranges::equal(to.first(count), std::vector(from.rbegin() + (count == 0 ? 1 : 0), from.rend())));
}

INSTANTIATE_TEST_SUITE_P(AroundTheLimits, CutTest,
                         ::testing::Values(Cut{0, {0}}, Cut{1, {1}}, Cut{32, {32}}, Cut{33, {32, 1}}, Cut{96, {32, 64}},
                                           Cut{97, {32, 64, 1}}, Cut{992, {32, 64, 128, 256, 512}},
                                           Cut{2049, {32, 64, 128, 256, 512, 512, 512, 33}}),
                         [](const auto& cut) { return std::to_string(cut.param.blocks); });

TEST_F(TransferEndsTest, ItsLastPartMayEndBeforeItsFirst) {
    share_between_two();
    const GateHandle gate = probe.close_gate(first_stream);
    const auto number = enqueue(many(33), nullptr);
    while (lane->stats().in_flight == 0) {
    }
    probe.synchronize(second_stream);
    EXPECT_FALSE(lane->wait(*number, kShort)) << "32 blocks have not been copied";
    probe.open_gate(gate);
    EXPECT_EQ(ended(number).error, "");
}

// The second is done with, and waits for its turn: its caller may take both ends in the order of the transfers.
TEST_F(TransferEndsTest, AShortTransferThatOvertakesALongOneIsReportedBehindIt) {
    share_between_two();
    const GateHandle gate = probe.close_gate(second_stream);
    const auto longer = enqueue(many(33), nullptr);
    const auto shorter = enqueue(many(1), nullptr);
    while (lane->stats().in_flight != 2) {
    }
    probe.synchronize(first_stream);
    EXPECT_FALSE(lane->wait(*shorter, kShort));
    probe.open_gate(gate);
    EXPECT_TRUE(lane->wait(*shorter, kLong));
    const std::vector<EndedTransfer> both = lane->take_ended();
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both.front().job, *longer);
}

TEST_F(TransferEndsTest, ATransferThatIsRefusedWholeIsReportedBehindThoseInFlight) {
    share_between_two();
    const GateHandle gate = probe.close_gate(second_stream);
    const auto good = enqueue(many(33), nullptr);
    const auto refused = enqueue({{.dst = 1, .src = address_of(host.data()), .bytes = 4}}, nullptr);
    EXPECT_TRUE(lane->wait(*refused, kLong));
    EXPECT_TRUE(lane->take_ended().empty());
    EXPECT_EQ(lane->state(*good), TransferState::in_flight);
    probe.open_gate(gate);
    EXPECT_TRUE(lane->wait(*good, kLong));
    const std::vector<EndedTransfer> both = lane->take_ended();
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both.front().error, "");
    EXPECT_CONTAINS(both.back().error, "copy destination");
}

// The third part is refused, behind the first on its stream. The submission waits for that stream, and the end for the other.
TEST_F(TransferEndsTest, APartThatIsRefusedInTheMiddleLeavesNoneRunning) {
    share_between_two();
    hold_until_synchronize(first_stream);
    const GateHandle gate = probe.close_gate(second_stream);
    std::vector<CopySpan> spans = many(300);
    spans[100].dst = 1;
    const auto number = enqueue(spans, nullptr);
    while (opened == 0) {
    }
    EXPECT_FALSE(lane->wait(*number, kShort)) << "the second part is held";
    EXPECT_EQ(parts(), (std::vector<std::size_t>{32, 64, 128}));
    probe.open_gate(gate);
    EXPECT_CONTAINS(ended(number).error, "copy destination");
    EXPECT_EQ(ended(enqueue(many(33), nullptr)).error, "");
}

// Both transfers lose the part on the broken stream, and keep the memory until the part on the other has ended.
TEST_F(TransferEndsTest, APartThatFailsLeavesNoneRunningOfTwoTransfers) {
    share_between_two();
    const GateHandle held_back = probe.close_gate(first_stream);
    const GateHandle gate = probe.close_gate(second_stream);
    probe.sim().fail_operation(1);
    const auto number = enqueue(many(33), nullptr);
    const auto next = enqueue(many(33), nullptr);
    while (lane->stats().in_flight != 2) {
    }
    probe.open_gate(held_back);
    EXPECT_THROW(probe.sim().synchronize(first_stream), DeviceError);
    EXPECT_FALSE(lane->wait(*number, kShort));
    EXPECT_FALSE(lane->wait(*next, kShort));
    probe.open_gate(gate);
    EXPECT_TRUE(lane->wait(*next, kLong));
    for (const EndedTransfer& end : lane->take_ended()) {
        EXPECT_CONTAINS(end.error, "on request");
    }
    EXPECT_EQ(ended(enqueue(many(33), nullptr)).error, "");
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(TransferEndsTest, ThePartThatTheThreadWaitsForFails) {
    share_between_two(1);
    const GateHandle gate = probe.close_gate(stream);
    fill(block, 7, stream);
    probe.sim().fail_operation(1);
    const auto number = begun_without_room();
    const GateHandle other_gate = probe.close_gate(second_stream);
    probe.open_gate(gate);
    EXPECT_THROW(probe.sim().synchronize(first_stream), DeviceError);
    probe.open_gate(other_gate);
    EXPECT_CONTAINS(ended(number).error, "on request");
    EXPECT_EQ(ended(enqueue(many(2048), nullptr)).error, "");
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(TransferEndsTest, ALaneThatIsClosedInTheMiddleOfASubmissionEndsItWhole) {
    share_between_two(1);
    const GateHandle gate = probe.close_gate(stream);
    fill(block, 7, stream);
    const auto number = begun_without_room();
    const auto next = store(marks->set(stream));
    EXPECT_FALSE(lane->close(kShort));
    EXPECT_EQ(lane->state(*number), TransferState::queued);
    probe.open_gate(gate);
    EXPECT_TRUE(lane->close(kLong));
    const std::vector<EndedTransfer> both = lane->take_ended();
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both.front().error, "");
    EXPECT_CONTAINS(both.back().error, "closed before");
    EXPECT_EQ(both.back().job, *next);
    EXPECT_EQ(values(host), all(kWords, 7));
    EXPECT_EQ(marks->created(), 2U);
}

}  // namespace
}  // namespace kvfix
