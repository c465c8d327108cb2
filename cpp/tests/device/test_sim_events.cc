// Events: which record a wait is bound to, and what they order.
#include "sim_fixture.h"

namespace kvfix {
namespace {

class SimEventTest : public SimDeviceTest {
  protected:
    EventHandle event = device.create_event();
    StreamHandle other = device.create_stream();
};

TEST_F(SimEventTest, IsDoneWhenNeverRecorded) {
    EXPECT_TRUE(device.done(event));
    device.wait(event);
    const GateHandle gate = device.close_gate(stream);
    device.make_wait(other, event);
    device.record(event, stream);
    device.synchronize(other);  // bound to no record at all, so the later one does not hold it
    EXPECT_FALSE(device.done(event));
    device.open_gate(gate);
    device.wait(event);
    EXPECT_TRUE(device.done(event));
}

TEST_F(SimEventTest, IsPendingFromTheCallOn) {
    device.record(event, stream);
    device.wait(event);
    const GateHandle gate = device.close_gate(stream);
    device.record(event, stream);
    EXPECT_FALSE(device.done(event)) << "record() re-arms at the call, not when the stream gets there";
    device.open_gate(gate);
    device.wait(event);
    EXPECT_TRUE(device.done(event));
}

TEST_F(SimEventTest, AWaitKeepsTheRecordItWasMadeFor) {
    const Words word = device_words(1);
    const Words seen = pinned(1);
    fill(word, 1, stream);
    device.record(event, stream);
    device.make_wait(other, event);
    const GateHandle gate = device.close_gate(stream);
    device.record(event, stream);  // a later record does not hold the stream that waits for the earlier one
    copy(seen, word, other);
    device.synchronize(other);
    EXPECT_EQ(values(seen), all(1, 1));
    EXPECT_FALSE(device.done(event));
    device.open_gate(gate);
}

TEST_F(SimEventTest, ComesAfterTheWorkInFrontOfIt) {
    const Words word = device_words(1);
    for (std::int32_t value = 1; value <= 200; ++value) {
        fill(word, static_cast<std::uint32_t>(value), stream);
        device.record(event, stream);
        device.wait(event);
        ASSERT_EQ(values(word), all(1, value));
    }
}

TEST_F(SimEventTest, OrdersOneStreamBehindAnother) {
    const Words word = device_words(1);
    const Words seen = pinned(1);
    for (std::int32_t value = 1; value <= 200; ++value) {
        const GateHandle gate = device.close_gate(stream);
        fill(word, static_cast<std::uint32_t>(value), stream);
        device.record(event, stream);
        device.make_wait(other, event);
        copy(seen, word, other);
        device.open_gate(gate);
        device.synchronize(other);
        ASSERT_EQ(values(seen), all(1, value));
    }
}

TEST_F(SimEventTest, MayBeDestroyedWhileAStreamWaitsForIt) {
    const Words word = device_words(1);
    const GateHandle gate = device.close_gate(stream);
    fill(word, 4, stream);
    device.record(event, stream);
    device.make_wait(other, event);
    device.destroy_event(event);
    const Words seen = pinned(1);
    copy(seen, word, other);
    device.open_gate(gate);
    device.synchronize(other);
    EXPECT_EQ(values(seen), all(1, 4));
    const std::string name = "event " + std::to_string(event.value);
    EXPECT_CONTAINS(error_of([&] { device.done(event); }), name);
    EXPECT_CONTAINS(error_of([&] { device.wait(event); }), name);
    EXPECT_CONTAINS(error_of([&] { device.record(event, stream); }), name);
    EXPECT_CONTAINS(error_of([&] { device.make_wait(stream, event); }), name);
    EXPECT_CONTAINS(error_of([&] { device.destroy_event(event); }), name);
}

}  // namespace
}  // namespace kvfix
