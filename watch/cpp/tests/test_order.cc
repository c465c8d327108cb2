// Which uses the program has observed to be over, by the calls that it made.
#include <gtest/gtest.h>

#include "calls_test.h"

namespace hostrace {
namespace {

class OrderTest : public CallsTest {
  protected:
    OrderTest() {
        driver_.stream_flags = [](cuda::Handle stream, unsigned* flags) {
            *flags = reinterpret_cast<std::uintptr_t>(stream) >= 2000 ? cuda::kStreamNonBlocking : 0;
            return cuda::kSuccess;
        };
    }
    void send(Word stream) {
        told(277, kDevice, kHost, std::size_t{64}, stream);
        *FakeDriver::word = FakeDriver::written.back().second;  // the device is done, whoever looks
    }
    Grade touched() {
        const Verdict seen = watch_->guard.touch(kHost, 1, Access::write);
        EXPECT_EQ(seen.answer, Answer::race);
        watch_->guard.release(seen.use.id);
        return seen.grade;
    }
    void expect_over() { EXPECT_TRUE(watch_->guard.idle()); }

    static constexpr Word kBlocking = 1000, kOtherBlocking = 1016, kFree = 2000, kOtherFree = 2016, kEvent = 3000;
    static constexpr Word kLegacy = 0;
};

TEST_F(OrderTest, OnlyWhatWasWaitedForIsOver) {
    send(kFree);
    told(126, kOtherFree);
    EXPECT_EQ(touched(), Grade::unordered);
    send(kFree);
    told(126, kFree);
    expect_over();
}

TEST_F(OrderTest, WhatAHostFunctionChangesIsNotComparedAlthoughItRanBeforeItsCallReturned) {
    alignas(kPage) static std::array<char, kPage> memory;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const auto& reported = watch_->counts.times[0];
    told(301, begin, std::size_t{100}, 0U);
    for (const bool in_the_stream : {true, false}) {
        const std::uint64_t before = reported;
        told(277, kDevice, begin, std::size_t{64}, kFree);
        *FakeDriver::word = FakeDriver::written.back().second;
        if (in_the_stream) {
            tell(cupti::kEnter, 0, 527, kFree, Word{0}, Word{0});
            ++memory[3];
            told(126, kFree);  // another thread waits meanwhile
            told(527, kFree, Word{0}, Word{0});
            *FakeDriver::word = FakeDriver::written.back().second;
        } else {
            ++memory[3];
        }
        told(126, kFree);
        EXPECT_EQ(reported - before, in_the_stream ? 0U : 1U);
    }
}

TEST_F(OrderTest, TheLegacyStreamOrdersThoseThatBlock) {
    send(kBlocking);
    told(126, kLegacy);
    expect_over();
    send(kFree);
    told(126, kLegacy);
    EXPECT_EQ(touched(), Grade::unordered);
    send(kLegacy);
    told(126, kBlocking);
    expect_over();
}

TEST_F(OrderTest, AStreamThatIsDestroyedPassesOnWhatItWaitedFor) {
    send(kFree);
    told(119, kEvent, kFree);
    told(295, kBlocking, kEvent, 0U);
    tell(cupti::kEnter, 0, 326, kBlocking);
    told(126, kOtherFree);
    EXPECT_FALSE(watch_->guard.idle());
    told(126, kLegacy);
    expect_over();
}

TEST_F(OrderTest, BlockingStreamsAreOrderedByWorkOfTheLegacyStreamBetweenThem) {
    send(kBlocking);
    told(126, kOtherBlocking);
    EXPECT_EQ(touched(), Grade::unordered);
    send(kBlocking);
    told(281, kDevice, kDevice + kBytes, std::size_t{8}, kLegacy);
    told(126, kOtherBlocking);
    expect_over();
}

TEST_F(OrderTest, AnEventCoversWhatWasEnqueuedBeforeIt) {
    told(119, kEvent, kFree);
    send(kFree);
    told(120, kEvent);
    EXPECT_EQ(touched(), Grade::unordered);
    send(kFree);
    told(587, kEvent, kFree, 0U);
    told(121, kEvent);
    expect_over();
}

TEST_F(OrderTest, OrderGoesThroughSeveralStreams) {
    send(kFree);
    told(119, kEvent, kFree);
    told(295, kOtherFree, kEvent, 0U);
    tell(cupti::kEnter, 0, 325, kEvent);
    told(119, kEvent + 8, kOtherFree);
    told(295, kOtherFree + 16, kEvent + 8, 0U);
    told(126, kOtherFree + 16);
    expect_over();
}

TEST_F(OrderTest, AnEventInWhichNothingIsRecordedYetCoversNothing) {
    const Word event = kEvent;
    driver_.event_node = [](cuda::Handle, cuda::Handle*) { return 1; };
    told(118, reinterpret_cast<Word>(&event), 0U);
    send(kFree);
    told(121, kEvent);
    EXPECT_EQ(touched(), Grade::unordered);
    // A graph may have recorded it.
    driver_.event_node = nullptr;
    tell(cupti::kEnter, 0, 325, kEvent);
    told(118, reinterpret_cast<Word>(&event), 0U);
    send(kFree);
    told(121, kEvent);
    expect_over();
}

TEST_F(OrderTest, AnEventOfUnknownOriginMayCoverEverything) {
    send(kFree);
    told(121, kEvent);
    expect_over();
}

TEST_F(OrderTest, WhatFailedWasNotObserved) {
    send(kFree);
    tell(cupti::kExit, 600, 125, kFree);
    EXPECT_EQ(touched(), Grade::unordered);
}

TEST_F(OrderTest, CallsThatReturnWhenTheDefaultStreamIsDone) {
    for (const std::uint32_t number : {305U, 276U, 278U, 282U, 292U, 287U, 288U, 290U}) {
        send(kLegacy);
        told(number);
        expect_over();
    }
    for (const std::uint32_t number : {38U, 302U, 245U, 89U, 17U}) {
        send(kFree);
        told(number, Word{0});
        expect_over();
    }
}

TEST_F(OrderTest, UnknownMeansMakeItPossible) {
    for (const std::uint32_t number : {460U, 475U, 663U, 665U}) {
        send(kFree);
        told(number, kFree, kDevice, Word{1}, 0U);
        EXPECT_EQ(touched(), Grade::possible);
    }
    send(kFree);
    EXPECT_EQ(touched(), Grade::unordered);
    told(334, Word{0}, kEvent);
    send(kFree);
    EXPECT_EQ(touched(), Grade::possible);
}

TEST_F(OrderTest, NothingBehindAWaitForTheHostHasBegun) {
    for (const std::uint32_t number : {527U, 346U, 458U, 473U, 659U, 661U, 462U, 667U}) {
        told(number, kFree, kDevice, Word{1}, 0U);
        told(277, kDevice, kHost, std::size_t{64}, kFree);
        EXPECT_EQ(watch_->guard.touch(kHost, 1, Access::write).answer, Answer::opened) << number;
        expect_over();
        *FakeDriver::word = FakeDriver::written.back().second;
    }
    told(277, kDevice, kHost, std::size_t{64}, kFree);
    EXPECT_EQ(touched(), Grade::race);
}

TEST_F(OrderTest, ALaunchThatRecordsAnEventLeavesItUnknown) {
    told(119, kEvent, kOtherFree);
    send(kFree);
    cuda::LaunchAttribute attribute{cuda::kLaunchRecords, reinterpret_cast<cuda::Handle>(kEvent), {}};
    cuda::LaunchConfig config{};
    config.stream = reinterpret_cast<cuda::Handle>(kFree);
    config.attributes = &attribute;
    config.attributes_count = 1;
    told(652, &config, function_, Word{0}, Word{0});
    told(121, kEvent);
    expect_over();
}

TEST_F(OrderTest, ASmallUseInTheSamePageDoesNotTakeAnotherOut) {
    send(kFree);
    told(277, kDevice, kHost + 512, std::size_t{64}, kFree);
    *FakeDriver::word = FakeDriver::written.back().second;
    EXPECT_EQ(touched(), Grade::unordered);
}

TEST_F(OrderTest, NeighboursOfWhatHasEndedAreNotStoppedForEver) {
    send(kFree);
    for (std::uint32_t at = 0; at < Guard::kNeighboursMax; ++at) {
        const Verdict seen = watch_->guard.touch(kHost + 1000, 1, Access::write);
        ASSERT_EQ(seen.answer, Answer::step);
        watch_->guard.close(seen.opening);
    }
    EXPECT_EQ(watch_->guard.touch(kHost + 1000, 1, Access::write).answer, Answer::opened);
    EXPECT_EQ(watch_->counts.let_go.load(), 1U);
    expect_over();
}

}  // namespace
}  // namespace hostrace
