// Streams: the order within one, the default stream that begins on first use, and what destruction waits for.
#include <algorithm>
#include <string_view>

#include "sim_fixture.h"

namespace kvfix {
namespace {

TEST_F(SimDeviceTest, SaysWhatItIs) {
    EXPECT_EQ(device.name(), "simulated device, seed 1");
    EXPECT_TRUE(device.simulated());
    EXPECT_TRUE(device.has_kernels());
    EXPECT_TRUE(device.has_batched_copy());
    EXPECT_EQ(open_sim_device(9)->name(), "simulated device, seed 9");
}

TEST_F(SimDeviceTest, CopiesInEveryDirection) {
    const Words source = pinned(8);
    const Words first = device_words(8);
    const Words second = device_words(8);
    const Words target = pinned(8);
    racy_fill(source, 42);
    copy(first, source, stream);
    copy(second, first, stream);
    copy(target, second, stream);
    device.synchronize(stream);
    EXPECT_EQ(values(target), all(8, 42));
}

TEST_F(SimDeviceTest, CopiesBytesThatAreNotWords) {
    auto* source = static_cast<char*>(device.map_pinned(16));
    auto* target = static_cast<char*>(device.map_pinned(16));
    std::ranges::copy(std::string_view("0123456789abcdef"), source);
    device.copy({address_of(target + 3), address_of(source + 1), 5}, stream);
    device.copy({address_of(target), address_of(source), 0}, stream);
    device.synchronize(stream);
    EXPECT_EQ(std::string(target + 2, 7), std::string("\0"
                                                      "12345"
                                                      "\0",
                                                      7));
}

TEST_F(SimDeviceTest, CopiesRowsBetweenPitches) {
    const Words source = pinned(12);
    const Words target = pinned(12);
    for (std::size_t i = 0; i < 12; ++i) {
        source[i] = static_cast<std::int32_t>(i);
    }
    device.copy_rows({.dst = address_of(target.data()),
                      .dst_pitch = 20,
                      .src = address_of(source.data()),
                      .src_pitch = 12,
                      .row_bytes = 8,
                      .rows = 2},
                     stream);
    device.synchronize(stream);
    EXPECT_EQ(values(target), (std::vector<std::int32_t>{0, 1, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0}));
}

TEST_F(SimDeviceTest, NothingIsOvertakenWithinAStream) {
    constexpr std::size_t kSteps = 300;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        SimDevice own(seed);
        const StreamHandle on = own.create_stream();
        auto* word = reinterpret_cast<std::uint32_t*>(own.allocate(sizeof(std::uint32_t)));
        auto* seen = static_cast<std::uint32_t*>(own.map_pinned(kSteps * sizeof(std::uint32_t)));
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            own.launch(FillWords{word, 1, step}, on);
            own.copy({address_of(seen + step), address_of(word), sizeof(std::uint32_t)}, on);
        }
        own.synchronize(on);
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            ASSERT_EQ(seen[step], step) << "seed " << seed;
        }
    }
}

TEST_F(SimDeviceTest, StreamsAreNotOrderedAmongEachOther) {
    const Words word = device_words(1);
    const Words seen = pinned(1);
    const StreamHandle other = device.create_stream();
    const GateHandle gate = device.close_gate(stream);
    fill(word, 1, stream);
    fill(word, 2, other);
    copy(seen, word, other);
    device.synchronize(other);
    EXPECT_EQ(values(seen), all(1, 2)) << "what was enqueued first waits behind the gate";
    device.open_gate(gate);
    device.synchronize(stream);
    EXPECT_EQ(values(word), all(1, 1));
}

TEST_F(SimDeviceTest, TheDefaultStreamIsThereWithoutBeingCreated) {
    const Words word = device_words(1);
    fill(word, 7, StreamHandle{0});
    device.synchronize(StreamHandle{});
    EXPECT_EQ(values(word), all(1, 7));
    EXPECT_CONTAINS(error_of([&] { device.destroy_stream(StreamHandle{0}); }), "default stream");
}

TEST_F(SimDeviceTest, DestroyingAStreamRunsWhatIsQueued) {
    const Words word = device_words(1);
    for (std::uint32_t value = 1; value <= 100; ++value) {
        fill(word, value, stream);
    }
    device.destroy_stream(stream);
    EXPECT_EQ(values(word), all(1, 100));
}

TEST_F(SimDeviceTest, HandlesThatAreGoneAreRefused) {
    device.destroy_stream(stream);
    const std::string name = "stream " + std::to_string(stream.value);
    EXPECT_CONTAINS(error_of([&] { device.synchronize(stream); }), name);
    EXPECT_CONTAINS(error_of([&] { device.destroy_stream(stream); }), name);
    EXPECT_CONTAINS(error_of([&] { device.close_gate(stream); }), name);
    const StreamHandle next = device.create_stream();
    EXPECT_NE(next, stream) << "a handle that comes back would hide the use of a stale one";
    EXPECT_CONTAINS(error_of([&] { device.open_gate(GateHandle{77}); }), "gate 77");
}

TEST(SimDeviceEnd, OpensGatesAndDrainsWhatWaitsForEachOther) {
    std::vector<std::int32_t> words(2, 0);
    {
        SimDevice device(3);
        device.register_host(words.data(), sizeof(std::int32_t) * words.size());
        const StreamHandle first = device.create_stream();
        const StreamHandle second = device.create_stream();
        const EventHandle event = device.create_event();
        device.close_gate(second);
        device.close_gate(first);
        device.close_gate(first);
        device.launch(FillWords{reinterpret_cast<std::uint32_t*>(words.data()), 1, 5}, first);
        device.record(event, first);
        device.make_wait(second, event);
        device.copy({address_of(&words[1]), address_of(words.data()), sizeof(std::int32_t)}, second);
        EXPECT_FALSE(device.done(event));
    }
    EXPECT_EQ(words, (std::vector<std::int32_t>{5, 5}));
}

}  // namespace
}  // namespace kvfix
