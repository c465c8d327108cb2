// Marks behind the work of streams: what is awaited, and what is asked of the device.
#include "staging/stream_marks.h"

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

class StreamMarksTest : public StagingTest {
  protected:
    StreamMarks marks;
};

TEST_F(StreamMarksTest, WithoutOneNothingIsAwaited) {
    EXPECT_TRUE(marks.done());
    EXPECT_EQ(marks.wait().count(), 0);
    EXPECT_TRUE(marks.streams().empty());
}

TEST_F(StreamMarksTest, TheWorkOfEachStreamIsAwaited) {
    const Words first = device_words(1);
    const Words second = device_words(1);
    const GateHandle gate = probe.close_gate(stream);
    fill(first, 7, stream);
    marks.record(device, stream);
    fill(second, 8, other);
    marks.record(device, other);
    EXPECT_EQ(marks.streams().size(), 2U);
    EXPECT_FALSE(marks.done());
    probe.open_gate(gate);
    marks.wait();
    EXPECT_EQ(values(first), all(1, 7));
    EXPECT_EQ(values(second), all(1, 8));
    EXPECT_TRUE(marks.done());
}

TEST_F(StreamMarksTest, OneThatIsRecordedAgainIsBehindTheNewerWork) {
    const Words word = device_words(1);
    marks.record(device, stream);
    marks.wait();
    hold_until_wait(stream);
    fill(word, 9, stream);
    marks.record(device, stream);
    EXPECT_EQ(marks.streams().size(), 1U);
    EXPECT_FALSE(marks.done());
    EXPECT_GT(marks.wait().count(), 0);
    ASSERT_EQ(opened, 1) << "the stream was held, so only a wait can have opened it";
    EXPECT_EQ(values(word), all(1, 9));
}

TEST_F(StreamMarksTest, BehindAFailureTheyThrowAgainAndAgain) {
    const Words word = device_words(1);
    probe.sim().fail_operation(1);
    const GateHandle gate = probe.close_gate(stream);
    fill(word, 1, stream);
    marks.record(device, stream);
    probe.open_gate(gate);
    for (int i = 0; i < 2; ++i) {
        EXPECT_CONTAINS(error_of([&] { marks.wait(); }), "on request");
        EXPECT_CONTAINS(error_of([&] { static_cast<void>(marks.done()); }), "on request");
    }
}

}  // namespace
}  // namespace kvfix
