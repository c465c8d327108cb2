// Transfers run behind their marks, end one by one, fail alone, and never hold up who closes the lane.
#include "lanes/transfer_lane.h"

#include <future>
#include <stdexcept>
#include <thread>

#include "tests/lanes/lane_fixture.h"

namespace kvfix {
namespace {

TEST_F(TransferLaneTest, AStoreRunsBehindItsMarkWhateverTheStreamDoesLater) {
    for (std::int32_t i = 1; i <= 50; ++i) {
        const GateHandle gate = probe.close_gate(stream);
        fill(block, i, stream);
        const auto number = store(marks->set(stream));
        EXPECT_FALSE(lane->wait(*number, milliseconds{1}));
        probe.open_gate(gate);
        const EndedTransfer end = ended(number);
        ASSERT_EQ(end.error, "");
        ASSERT_EQ(end.bytes, kWords * 4);
        ASSERT_EQ(values(host), all(kWords, i));
    }
    EXPECT_EQ(marks->created(), 1U) << "a mark that nobody holds is used again";
    EXPECT_EQ(probe.events_shared(), 0U);
}

// The control of the test above: without the mark the lane is done while the writer is held.
TEST_F(TransferLaneTest, WithoutAMarkAStoreSavesWhatWasThereBefore) {
    for (std::int32_t i = 1; i <= 50; ++i) {
        fill(block, -i, stream);
        probe.synchronize(stream);
        const GateHandle gate = probe.close_gate(stream);
        fill(block, i, stream);
        const EndedTransfer end = ended(store());
        ASSERT_EQ(end.error, "");
        ASSERT_EQ(values(host), all(kWords, -i));
        probe.open_gate(gate);
        probe.synchronize(stream);
    }
}

TEST_F(TransferLaneTest, MarksThatAreHeldHaveEventsOfTheirOwn) {
    const GateHandle gate = probe.close_gate(stream);
    std::vector<MarkPtr> held;
    for (int i = 0; i < 4; ++i) {
        held.push_back(marks->set(stream));
    }
    EXPECT_CONTAINS(error_of([&] { marks->set(stream); }), "all 4 marks");
    held.pop_back();
    held.push_back(marks->set(stream));
    EXPECT_EQ(marks->created(), 4U);
    probe.open_gate(gate);
}

TEST_F(TransferLaneTest, AFullQueueRefusesAndTakesNothing) {
    reopen({.queue_max = 2, .in_flight_max = 1});
    const GateHandle gate = probe.close_gate(stream);
    const auto first = store(marks->set(stream));
    while (lane->stats().in_flight == 0) {  // until the thread has taken it
    }
    const auto second = store();
    const auto third = store();
    EXPECT_EQ(offer(99), LaneAnswer::full);
    EXPECT_EQ(lane->state(*first), TransferState::in_flight);
    EXPECT_EQ(lane->state(*second), TransferState::queued);
    EXPECT_EQ(lane->state(99), std::nullopt);
    probe.open_gate(gate);
    EXPECT_EQ(ended(third).error, "");
    EXPECT_TRUE(lane->wait(*first, kLong) && lane->wait(*second, kLong));
    EXPECT_TRUE(store());
}

TEST_F(TransferLaneTest, AFailedTransferEndsAloneAndTheNextOnesRun) {
    probe.sim().fail_operation(1);
    EXPECT_CONTAINS(ended(store()).error, "on request");
    fill(block, 7, stream);
    EXPECT_EQ(ended(store(marks->set(stream))).error, "");
    EXPECT_EQ(values(host), all(kWords, 7));
    EXPECT_EQ(lane->stats().failed, 1U);
    EXPECT_CONTAINS(lane->stats().first_error, "on request");
    EXPECT_FALSE(lane->stats().broken);
}

TEST_F(TransferLaneTest, AWriterThatFailedTakesItsStoreDown) {
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    fill(block, 7, stream);
    const auto number = store(marks->set(stream));
    probe.open_gate(gate);
    EXPECT_CONTAINS(ended(number).error, "waited for an event behind a failure");
    EXPECT_EQ(values(host), all(kWords, 0));
}

TEST_F(TransferLaneTest, UnpluggedItGivesUpWithTheFirstErrorAndNothingHangs) {
    const GateHandle gate = probe.close_gate(stream);
    std::vector<std::optional<std::uint64_t>> numbers;
    for (int i = 0; i < 8; ++i) {
        numbers.push_back(store(i == 0 ? marks->set(stream) : nullptr));
    }
    probe.sim().unplug();
    probe.open_gate(gate);
    for (const auto number : numbers) {
        ASSERT_TRUE(number && lane->wait(*number, kLong));
    }
    const std::vector<EndedTransfer> all_ended = lane->take_ended();
    ASSERT_EQ(all_ended.size(), 8U);
    for (const EndedTransfer& end : all_ended) {
        EXPECT_NE(end.error, "");
    }
    while (const auto number = store()) {
        ASSERT_TRUE(lane->wait(*number, kLong));
    }
    EXPECT_EQ(offer(99), LaneAnswer::broken);
    EXPECT_TRUE(lane->stats().broken);
    EXPECT_TRUE(lane->close(kLong));
    EXPECT_EQ(offer(99), LaneAnswer::closed) << "what it was before says nothing any more";
}

TEST_F(TransferLaneTest, ClosingEndsWhatHasNotBegunAndWaitsForWhatHas) {
    reopen({.queue_max = 8, .in_flight_max = 1});
    const GateHandle gate = probe.close_gate(stream);
    fill(block, 9, stream);
    const auto begun = store(marks->set(stream));
    while (lane->stats().in_flight == 0) {
    }
    const auto waiting = store();
    EXPECT_FALSE(lane->close(kShort)) << "the device still holds the first";
    EXPECT_TRUE(lane->wait(*begun, milliseconds{0}) == false);
    probe.open_gate(gate);
    EXPECT_TRUE(lane->close(kLong));
    const std::vector<EndedTransfer> all_ended = lane->take_ended();
    ASSERT_EQ(all_ended.size(), 2U);
    for (const EndedTransfer& end : all_ended) {
        EXPECT_EQ(end.error.empty(), end.job == *begun) << end.error;
    }
    EXPECT_EQ(values(host), all(kWords, 9));
    EXPECT_EQ(lane->state(*waiting), std::nullopt) << "its end has been taken";
    EXPECT_EQ(offer(99), LaneAnswer::closed);
}

TEST_F(TransferLaneTest, ManyThreadsCloseALaneAndEachSeesItClosed) {
    for (int i = 0; i < 50; ++i) {
        reopen({});
        const GateHandle gate = probe.close_gate(stream);
        const auto number = store(marks->set(stream));
        std::vector<std::future<bool>> closed;
        for (int thread = 0; thread < 4; ++thread) {
            closed.push_back(std::async(std::launch::async, [&] { return lane->close(kLong); }));
        }
        probe.open_gate(gate);
        for (std::future<bool>& one : closed) {
            EXPECT_TRUE(one.get());
        }
        EXPECT_TRUE(lane->wait(*number, milliseconds{0}));
    }
}

TEST_F(TransferLaneTest, ALaneThatIsLetGoWhileTheDeviceIsStuckKeepsWhatTheDeviceUses) {
    std::promise<void> let_go;
    std::shared_ptr<Device> shared(&probe, [&](Device*) { let_go.set_value(); });
    std::optional<TransferLane> stuck(std::in_place, std::move(shared), LaneConfig{});
    const GateHandle gate = probe.close_gate(stream);
    fill(block, 3, stream);
    stuck->enqueue(1, {span_of(host, block)}, marks->set(stream));
    while (stuck->stats().in_flight == 0) {
    }
    stuck.reset();  // returns after its limit, with the gate closed
    std::future<void> all_gone = let_go.get_future();
    EXPECT_EQ(all_gone.wait_for(milliseconds{0}), std::future_status::timeout) << "the thread keeps stream and events";
    probe.open_gate(gate);
    all_gone.wait();
    EXPECT_EQ(values(host), all(kWords, 3));
}

TEST_F(TransferLaneTest, RefusesWhatTheDeviceDoesNotHave) {
    EXPECT_THROW(TransferLane(device, {.streams = 0}), std::invalid_argument);
    EXPECT_THROW(TransferLane(device, {.streams = 17}), std::invalid_argument);
    EXPECT_THROW(TransferLane(device, {.kernel_sms = probe.multiprocessors() + 1}), std::invalid_argument);
    probe.leave_kernels_out();
    EXPECT_THROW(TransferLane(device, {.kernel_sms = 1}), std::invalid_argument);
}

TEST_F(TransferLaneTest, KnowsOnlyWhatWasEnqueued) {
    EXPECT_TRUE(lane->wait(7, kShort)) << "nothing of that number is under way";
    EXPECT_EQ(lane->state(7), std::nullopt);
    const GateHandle gate = probe.close_gate(stream);
    EXPECT_EQ(offer(7, marks->set(stream)), LaneAnswer::taken);
    EXPECT_THROW(offer(7), std::invalid_argument);
    EXPECT_FALSE(lane->wait(7, kShort));
    probe.open_gate(gate);
    EXPECT_TRUE(lane->wait(7, kLong));
    EXPECT_EQ(lane->state(7), TransferState::ended_here);
    EXPECT_EQ(ended(7).job, 7U);
    EXPECT_EQ(offer(7), LaneAnswer::taken) << "the number is free again";
    EXPECT_TRUE(lane->wait(7, kLong));
    EXPECT_THROW(TransferLane(device, {.queue_max = 0}), std::invalid_argument);
}

TEST_F(TransferLaneTest, ManyThreadsEnqueueAndEachTransferEndsOnce) {
    std::vector<std::thread> threads;
    std::atomic<std::size_t> taken = 0;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&] {
            for (int i = 0; i < 50; ++i) {
                const auto number = store();
                EXPECT_TRUE(number && lane->wait(*number, kLong));
                taken += lane->take_ended().size();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(taken + lane->take_ended().size(), 200U);
    EXPECT_EQ(lane->stats().submitted, 200U);
}

}  // namespace
}  // namespace kvfix
