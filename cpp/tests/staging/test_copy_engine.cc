// Transfers keep their order with the streams that compute, are bounded in number, and fail alone.
#include "staging/copy_engine.h"

#include <future>
#include <new>
#include <optional>
#include <stdexcept>

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

constexpr std::size_t kWords = 64;

class CopyEngineTest : public StagingTest {
  protected:
    TransferId submit(Words dst, Words src, const CopyOrder& order, StreamHandle on) {
        const CopySpan halves[] = {span_of(dst.first(kWords / 2), src.first(kWords / 2)),
                                   span_of(dst.last(kWords / 2), src.last(kWords / 2))};
        return engine->submit(halves, order, on);
    }
    TransferId store(const CopyOrder& order = {}) { return submit(host, block, order, copies); }
    TransferId load(const CopyOrder& order = {}) { return submit(block, host, order, copies); }
    // A transfer on `stream` that has failed or will fail.
    TransferId failing() {
        const GateHandle gate = probe.close_gate(stream);
        probe.sim().fail_operation(1);
        const TransferId id = submit(host, block, {}, stream);
        probe.open_gate(gate);
        return id;
    }

    std::optional<CopyEngine> engine{std::in_place, device, std::size_t{2}};
    StreamHandle copies = probe.create_stream();
    EventHandle written = probe.create_event();
    Words block = device_words(kWords);
    Words host = pinned(kWords);
};

TEST_F(CopyEngineTest, RefusesABoundOfZero) { EXPECT_THROW(CopyEngine(device, 0), std::invalid_argument); }

TEST_F(CopyEngineTest, AStoreRunsAfterTheEventOfTheWriter) {
    for (std::int32_t i = 1; i <= 50; ++i) {
        const GateHandle gate = probe.close_gate(stream);
        fill(block, i, stream);
        probe.record(written, stream);
        // Not in order "any", which allows the source to be read at once.
        const TransferId id = store({.after = written, .before = {}, .source = SourceOrder::stream});
        EXPECT_FALSE(engine->done(id));
        probe.open_gate(gate);
        engine->wait(id);
        ASSERT_EQ(values(host), all(kWords, i));
    }
}

class StoreTest : public CopyEngineTest, public ::testing::WithParamInterface<SourceOrder> {};

// The copy fails with the writer that it waits for. Without that order it would save a block that was never written.
TEST_P(StoreTest, FailsWithTheWriter) {
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    fill(block, 1, stream);
    probe.record(written, stream);
    const TransferId id = store({.after = written, .before = {}, .source = GetParam()});
    probe.open_gate(gate);
    EXPECT_CONTAINS(error_of([&] { engine->wait(id); }), "waited for an event behind a failure");
    EXPECT_EQ(values(host), all(kWords, 0));
}

INSTANTIATE_TEST_SUITE_P(BothOrders, StoreTest, ::testing::Values(SourceOrder::stream, SourceOrder::any),
                         [](const auto& order) { return order.param == SourceOrder::any ? "any" : "stream"; });

TEST_F(CopyEngineTest, ALoadRunsBeforeItsReaders) {
    const Words seen = pinned(kWords);
    for (std::int32_t i = 1; i <= 50; ++i) {
        std::ranges::fill(host, i);
        const GateHandle gate = probe.close_gate(copies);
        load({.after = {}, .before = stream, .source = SourceOrder::any});
        probe.copy(span_of(seen, block), stream);
        probe.open_gate(gate);
        probe.synchronize(stream);
        ASSERT_EQ(values(seen), all(kWords, i));
    }
}

TEST_F(CopyEngineTest, AReaderFailsWithItsLoad) {
    const GateHandle gate = probe.close_gate(copies);
    probe.sim().fail_operation(1);
    load({.after = {}, .before = stream});
    probe.open_gate(gate);
    EXPECT_CONTAINS(error_of([&] { probe.synchronize(stream); }), "waited for an event behind a failure");
}

TEST_F(CopyEngineTest, OneMoreThanTheBoundWaitsForTheOldest) {
    const GateHandle held_on = probe.close_gate(other);
    hold_until_wait(copies);
    const TransferId oldest = store();
    submit(host, block, {}, other);
    EXPECT_EQ(engine->waits(), 0U);
    const TransferId last = store();
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(engine->waits(), 1U);
    EXPECT_TRUE(engine->done(oldest));
    probe.open_gate(held_on);
    engine->wait(last);
}

TEST_F(CopyEngineTest, IsDoneWhenItsOwnCopyIsWhateverTheOrder) {
    const GateHandle gate = probe.close_gate(copies);
    const TransferId held = store();
    for (std::int32_t i = 0; i < 20; ++i) {
        engine->wait(submit(host, block, {}, other));
        ASSERT_FALSE(engine->done(held));
    }
    probe.open_gate(gate);
    engine->wait(held);
    EXPECT_TRUE(engine->done(held));
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(CopyEngineTest, KnowsOnlyWhatWasSubmitted) {
    for (const TransferId id : {TransferId{0}, TransferId{1}}) {
        EXPECT_THROW(engine->done(id), std::invalid_argument);
        EXPECT_THROW(engine->wait(id), std::invalid_argument);
    }
    EXPECT_EQ(store(), 1U);
    EXPECT_EQ(store(), 2U);
    engine->wait(1);
    engine->wait(1);
}

TEST_F(CopyEngineTest, AskingDoesNotBlockBehindAWait) {
    std::promise<void> waiting;
    const GateHandle gate = probe.close_gate(copies);
    const TransferId id = store();
    probe.at_next_wait([&] { waiting.set_value(); });
    const auto waiter = std::async(std::launch::async, [&] { engine->wait(id); });
    waiting.get_future().wait();
    EXPECT_FALSE(engine->done(id));
    engine->wait(submit(host, block, {}, other));
    probe.open_gate(gate);
    waiter.wait();
    EXPECT_TRUE(engine->done(id));
}

TEST_F(CopyEngineTest, ManyThreadsSubmitAndWait) {
    std::vector<std::future<void>> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.push_back(std::async(std::launch::async, [&] {
            const StreamHandle own = probe.create_stream();
            const Words target = pinned(kWords);
            for (std::int32_t i = 0; i < 30; ++i) {
                fill(target, i, own);
                const TransferId id = submit(target, block, {}, own);
                engine->wait(id);
                EXPECT_TRUE(engine->done(id));
                EXPECT_NE(values(target), all(kWords, i));
            }
        }));
    }
    for (auto& thread : threads) {
        thread.get();
    }
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(CopyEngineTest, ATransferThatFailsIsTheBusinessOfWhoAsks) {
    const TransferId failed = failing();
    for (int i = 0; i < 10; ++i) {  // more than the bound, because a failed transfer takes no place
        const TransferId id = store();
        engine->wait(id);
        EXPECT_TRUE(engine->done(id));
    }
    for (int i = 0; i < 2; ++i) {
        EXPECT_CONTAINS(error_of([&] { engine->wait(failed); }), "on request");
        EXPECT_CONTAINS(error_of([&] { engine->done(failed); }), "on request");
    }
}

// One transfer that has passed, ahead of one that has failed. Both leave the books at once.
TEST_F(CopyEngineTest, AFailureDoesNotDisturbTheBooksOfTheOthers) {
    const GateHandle gate = probe.close_gate(copies);
    const TransferId good = store();
    const TransferId failed = failing();
    probe.open_gate(gate);
    probe.sim().synchronize(copies);
    EXPECT_THROW(probe.sim().synchronize(stream), DeviceError);
    engine->wait(store());
    EXPECT_TRUE(engine->done(good));
    EXPECT_THROW(engine->done(failed), DeviceError);
}

TEST_F(CopyEngineTest, WhenTheReaderCannotBeOrderedTheCopyHasEndedAndNoNumberIsGiven) {
    break_stream(stream);
    hold_until_synchronize(copies);
    fill(block, 5, copies);
    EXPECT_THROW(store({.after = {}, .before = stream}), DeviceError);
    ASSERT_EQ(opened, 1) << "the caller gets its memory back with the error";
    EXPECT_EQ(values(host), all(kWords, 5));
    EXPECT_THROW(engine->done(1), std::invalid_argument);
    const TransferId next = store();
    EXPECT_EQ(next, 1U);
    engine->wait(next);
}

// Of whatever kind, since the caller's next step is to use its memory again.
TEST_F(CopyEngineTest, AnExceptionBehindACopyLeavesWhenTheCopyHasEnded) {
    hold_until_synchronize(copies);
    fill(block, 5, copies);
    const auto copies_and_throws = [&] {
        probe.copy(span_of(host, block), copies);
        throw std::bad_alloc();
    };
    EXPECT_THROW(engine->submit(copies_and_throws, {}, copies), std::bad_alloc);
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(values(host), all(kWords, 5));
}

TEST_F(CopyEngineTest, ACopyThatIsRefusedLeavesTheEngineAsItWas) {
    const CopySpan nowhere{address_of(this), address_of(host.data()), kWords};
    EXPECT_THROW(engine->submit({&nowhere, 1}, {}, copies), DeviceError);
    engine->wait(store());
}

TEST_F(CopyEngineTest, ClosingWaitsForWhatIsPending) {
    hold_until_wait(copies);
    fill(block, 3, copies);
    store();
    engine.reset();
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(values(host), all(kWords, 3));
}

TEST_F(CopyEngineTest, UnpluggedEveryWaitingCallerGetsAnErrorAndNothingHangs) {
    const GateHandle gate = probe.close_gate(copies);
    const TransferId first = store();
    const TransferId second = store();
    std::vector<std::future<void>> callers;
    for (const TransferId id : {first, second, second}) {
        callers.push_back(std::async(std::launch::async, [&, id] { engine->wait(id); }));
    }
    std::promise<void> full;
    probe.at_next_wait([&] { full.set_value(); });
    callers.push_back(std::async(std::launch::async, [&] { engine->wait(store()); }));
    full.get_future().wait();
    probe.sim().unplug();
    probe.open_gate(gate);
    for (auto& caller : callers) {
        EXPECT_THROW(caller.get(), DeviceError);
    }
    EXPECT_THROW(engine->done(first), DeviceError);
    EXPECT_THROW(store(), DeviceError) << "its stream is broken";
    engine.reset();
}

}  // namespace
}  // namespace kvfix
