// Every method from many threads. Under ThreadSanitizer this is the check of the device's own books.
#include <atomic>
#include <thread>

#include "sim_fixture.h"

namespace kvfix {
namespace {

constexpr std::uint32_t kThreads = 4;
constexpr std::uint32_t kRounds = 40;

template <typename Body>
void run_threads(Body&& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&body, thread] { body(thread); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// One thread's life: its own streams, events and memory, made and given back in every round.
void live_one_round(SimDevice& device, std::uint32_t value) {
    const StreamHandle writer = device.create_stream();
    const StreamHandle reader = device.create_stream();
    const EventHandle event = device.create_event();
    auto* block = reinterpret_cast<std::uint32_t*>(device.allocate(256));
    auto* host = static_cast<std::uint32_t*>(device.map_pinned(256));
    const GateHandle gate = device.close_gate(writer);
    device.launch(FillWords{block, 64, value}, writer);
    device.record(event, writer);
    device.make_wait(reader, event);
    const CopySpan span{address_of(host), address_of(block), 256};
    device.copy_batch({&span, 1}, SourceOrder::stream, reader);
    EXPECT_FALSE(device.done(event));
    device.open_gate(gate);
    device.wait(event);
    device.destroy_stream(reader);
    device.destroy_stream(writer);
    EXPECT_EQ(std::vector<std::uint32_t>(host, host + 64), std::vector<std::uint32_t>(64, value));
    device.destroy_event(event);
    device.unmap_pinned(host, 256);
    device.release(address_of(block));
}

TEST(SimThreads, LiveBesideEachOther) {
    SimDevice device(5);
    run_threads([&](std::uint32_t thread) {
        for (std::uint32_t round = 0; round < kRounds; ++round) {
            live_one_round(device, thread * kRounds + round);
        }
    });
}

TEST(SimThreads, ShareAStreamWithoutLosingAnOperation) {
    SimDevice device(6);
    const StreamHandle stream = device.create_stream();
    constexpr std::uint32_t kSlots = kThreads * kRounds;
    auto* slots = static_cast<std::uint32_t*>(device.map_pinned(kSlots * sizeof(std::uint32_t)));
    run_threads([&](std::uint32_t thread) {
        for (std::uint32_t round = 0; round < kRounds; ++round) {
            std::uint32_t* slot = slots + thread * kRounds + round;
            device.launch(FillWords{slot, 1, round + 1}, stream);
            device.synchronize(stream);
            EXPECT_EQ(*slot, round + 1);
        }
    });
    device.destroy_stream(stream);
}

TEST(SimThreads, FindOneDefaultStream) {
    SimDevice device(7);
    auto* words = static_cast<std::uint32_t*>(device.map_pinned(kThreads * sizeof(std::uint32_t)));
    std::atomic<std::uint32_t> arrived = 0;
    run_threads([&](std::uint32_t thread) {
        ++arrived;
        while (arrived < kThreads) {
            std::this_thread::yield();  // so that any of them may be the first to need the stream
        }
        device.launch(FillWords{words + thread, 1, thread + 1}, StreamHandle{});
        device.synchronize(StreamHandle{});
        EXPECT_EQ(words[thread], thread + 1);
    });
}

TEST(SimThreads, AnotherThreadOpensTheGate) {
    SimDevice device(8);
    const StreamHandle stream = device.create_stream();
    const EventHandle event = device.create_event();
    for (std::uint32_t round = 0; round < kRounds; ++round) {
        const GateHandle gate = device.close_gate(stream);
        device.record(event, stream);
        std::thread opener([&] { device.open_gate(gate); });
        device.wait(event);
        device.synchronize(stream);
        EXPECT_TRUE(device.done(event));
        opener.join();
    }
}

// Without its own copy of the index, a kernel would check one row and follow another.
TEST(SimThreads, AnIndexThatTurnsWildIsRefusedOrNotSeen) {
    SimDevice device(10);
    constexpr std::uint32_t kRows = 512;
    auto* table = static_cast<std::int32_t*>(device.map_pinned(2 * sizeof(std::int32_t)));
    auto* index = static_cast<std::int32_t*>(device.map_pinned(kRows * sizeof(std::int32_t)));
    auto* target = reinterpret_cast<std::int32_t*>(device.allocate(kRows * 2 * sizeof(std::int32_t)));
    std::atomic<bool> stop = false;
    std::thread writer([&] {
        while (!stop) {
            store_relaxed(index + kRows - 1, INT32_MAX);
            store_relaxed(index + kRows - 1, 0);
        }
    });
    for (std::uint32_t round = 0; round < 10 * kRounds; ++round) {
        const StreamHandle stream = device.create_stream();
        device.launch(GatherHostRows{{target, kRows * 2, 1}, table, 2, 1, index, 1, kRows, 1, {}}, stream);
        try {
            device.destroy_stream(stream);
        } catch (const DeviceError& error) {
            EXPECT_CONTAINS(std::string(error.what()), "table row: 4 bytes");
        }
    }
    stop = true;
    writer.join();
}

TEST(SimThreads, AFailureReachesEveryThreadThatAsks) {
    SimDevice device(9);
    const StreamHandle stream = device.create_stream();
    const EventHandle event = device.create_event();
    auto* word = reinterpret_cast<std::uint32_t*>(device.allocate(sizeof(std::uint32_t)));
    device.fail_operation(1);
    const GateHandle gate = device.close_gate(stream);
    device.launch(FillWords{word, 1, 1}, stream);
    device.record(event, stream);
    device.open_gate(gate);
    run_threads([&](std::uint32_t thread) {
        EXPECT_THROW(thread % 2 == 0 ? device.synchronize(stream) : device.wait(event), DeviceError);
    });
}

}  // namespace
}  // namespace kvfix
