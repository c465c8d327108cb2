// Errors inside a stream: they reach everyone who asks, they travel along events, and nothing hangs.
#include "sim_fixture.h"

namespace kvfix {
namespace {

class SimErrorTest : public SimDeviceTest {
  protected:
    // Enqueues behind a gate, so that no call in between already finds the stream broken.
    template <typename Enqueue>
    void run_held(Enqueue&& enqueue) {
        const GateHandle gate = device.close_gate(stream);
        enqueue();
        device.open_gate(gate);
    }

    EventHandle event = device.create_event();
    StreamHandle other = device.create_stream();
    Words word = device_words(1);
};

TEST_F(SimErrorTest, TheNthOperationFailsAndNothingBehindItRuns) {
    device.fail_operation(3);
    run_held([&] {
        fill(word, 1, stream);
        fill(word, 2, stream);
        fill(word, 3, stream);
        fill(word, 4, stream);
    });
    const std::string error = error_of([&] { device.synchronize(stream); });
    EXPECT_EQ(error, "stream " + std::to_string(stream.value) + ": FillWords: failed on request, by fail_operation()");
    EXPECT_EQ(values(word), all(1, 2));
}

TEST_F(SimErrorTest, ABrokenStreamStaysBrokenForEveryCall) {
    device.fail_operation(1);
    fill(word, 1, stream);
    const std::string error = error_of([&] { device.synchronize(stream); });
    EXPECT_EQ(error_of([&] { device.synchronize(stream); }), error);
    EXPECT_EQ(error_of([&] { fill(word, 2, stream); }), error);
    EXPECT_EQ(error_of([&] { copy(word, word, stream); }), error);
    EXPECT_EQ(error_of([&] { device.record(event, stream); }), error);
    EXPECT_EQ(error_of([&] { device.close_gate(stream); }), error);
    EXPECT_TRUE(device.done(event)) << "a record that was refused has not armed the event";
    fill(word, 3, other);
    device.synchronize(other);
    EXPECT_EQ(values(word), all(1, 3)) << "other streams go on";
    EXPECT_EQ(error_of([&] { device.destroy_stream(stream); }), error);
    EXPECT_CONTAINS(error_of([&] { device.synchronize(stream); }), "unknown");
}

TEST_F(SimErrorTest, TheNextCallReportsWithoutASynchronization) {
    device.fail_operation(1);
    fill(word, 1, stream);
    for (;;) {  // ends: the stream runs on its own, and after the failure every call throws
        try {
            fill(word, 2, stream);
        } catch (const DeviceError& error) {
            EXPECT_CONTAINS(std::string(error.what()), "on request");
            break;
        }
    }
    EXPECT_NE(values(word), all(1, 2));
}

TEST_F(SimErrorTest, AnEventBehindAFailureIsNotDone) {
    device.fail_operation(1);
    run_held([&] {
        device.record(event, stream);
        fill(word, 1, stream);
    });
    device.wait(event);  // in front of the failure
    const EventHandle behind = device.create_event();
    device.fail_operation(1);
    const GateHandle gate = device.close_gate(other);
    fill(word, 1, other);
    device.record(behind, other);
    EXPECT_FALSE(device.done(behind));
    device.open_gate(gate);
    EXPECT_CONTAINS(error_of([&] { device.wait(behind); }), "on request");
    EXPECT_CONTAINS(error_of([&] { device.done(behind); }), "on request");
}

TEST_F(SimErrorTest, AStreamThatWaitsForAFailureFailsToo) {
    const Words target = pinned(1);
    device.fail_operation(1);
    run_held([&] {
        fill(word, 1, stream);
        device.record(event, stream);
        device.make_wait(other, event);
        copy(target, word, other);
    });
    const std::string error = error_of([&] { device.synchronize(other); });
    EXPECT_CONTAINS(error, "stream " + std::to_string(other.value) + ": waited for an event behind a failure: stream " +
                               std::to_string(stream.value));
    EXPECT_EQ(values(target), all(1, 0)) << "what was never computed is not copied";
}

TEST_F(SimErrorTest, UnpluggingFailsWhatHasNotBegun) {
    const Words target = pinned(1);
    fill(word, 1, stream);
    device.synchronize(stream);
    run_held([&] {
        fill(word, 2, stream);
        device.record(event, stream);
        device.unplug();
    });
    EXPECT_CONTAINS(error_of([&] { device.wait(event); }), "FillWords: the simulated device was unplugged");
    EXPECT_EQ(values(word), all(1, 1));
    copy(target, word, other);
    EXPECT_CONTAINS(error_of([&] { device.synchronize(other); }), "copy: the simulated device was unplugged");
    EXPECT_CONTAINS(error_of([&] { device.allocate(4); }), "unplugged");
    EXPECT_CONTAINS(error_of([&] { device.map_pinned(4); }), "unplugged");
    EXPECT_CONTAINS(error_of([&] { device.register_host(&device, 4); }), "unplugged");
    device.unmap_pinned(target.data(), target.size_bytes());  // giving back always works
    device.release(address_of(word.data()));
}

TEST_F(SimErrorTest, MemoryLetGoBeforeItsFenceIsNoticed) {
    const Words source = pinned(4);
    const Words target = device_words(4);
    run_held([&] {
        copy(target, source, stream);
        device.unmap_pinned(source.data(), source.size_bytes());
    });
    EXPECT_CONTAINS(error_of([&] { device.synchronize(stream); }),
                    "copy source: 16 bytes at " + hex(address_of(source.data())));
    EXPECT_CONTAINS(error_of([&] { device.synchronize(stream); }), "given back too early?");
    EXPECT_EQ(values(target), all(4, static_cast<std::int32_t>(0xcdcdcdcd)));
}

// This also holds if the sources were read early: the caller could not know that, and let go too early all the same.
TEST_F(SimErrorTest, MemoryOfABatchLetGoBeforeItsFenceIsNoticed) {
    for (int i = 0; i < 40; ++i) {
        const StreamHandle own = device.create_stream();
        const Words source = pinned(4);
        const Words target = pinned(4);
        const Words let_go = i % 2 == 0 ? source : target;
        const Words kept = i % 2 == 0 ? target : source;
        const CopySpan span = span_of(target, source);
        const GateHandle gate = device.close_gate(own);
        device.copy_batch({&span, 1}, SourceOrder::any, own);
        device.unmap_pinned(let_go.data(), let_go.size_bytes());
        device.open_gate(gate);
        EXPECT_CONTAINS(error_of([&] { device.destroy_stream(own); }), hex(address_of(let_go.data())));
        device.unmap_pinned(kept.data(), kept.size_bytes());
    }
}

TEST_F(SimErrorTest, AFaultIsForOneOperation) {
    EXPECT_CONTAINS(error_of([&] { device.fail_operation(0); }), "number 1");
    device.fail_operation(1);
    fill(word, 1, stream);
    EXPECT_CONTAINS(error_of([&] { device.synchronize(stream); }), "on request");
    fill(word, 2, other);
    device.synchronize(other);
    EXPECT_EQ(values(word), all(1, 2));
}

}  // namespace
}  // namespace kvfix
