// Common parts of the staging tests: a probe device with two streams, memory of int32 words, and gates that a wait
// opens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/device_error.h"
#include "tests/staging/probe_device.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace kvfix {

inline std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// Staging keeps a buffer for good if the device may still read it. Memory that is allocated during the life of this
// object may be kept; every other leak is an error.
class KeepsMemoryOnPurpose {
  public:
    KeepsMemoryOnPurpose() { ignore_leaks(true); }
    ~KeepsMemoryOnPurpose() { ignore_leaks(false); }
    KeepsMemoryOnPurpose(const KeepsMemoryOnPurpose&) = delete;
    KeepsMemoryOnPurpose& operator=(const KeepsMemoryOnPurpose&) = delete;

  private:
    static void ignore_leaks([[maybe_unused]] bool from_now_on) {
#ifdef __SANITIZE_ADDRESS__
        from_now_on ? __lsan_disable() : __lsan_enable();
#endif
    }
};

class StagingTest : public ::testing::Test {
  protected:
    void TearDown() override { probe.let_everything_run(); }

    using Words = std::span<std::int32_t>;

    Words pinned(std::size_t count) {
        return {static_cast<std::int32_t*>(probe.map_pinned(count * sizeof(std::int32_t))), count};
    }
    Words device_words(std::size_t count) {
        return {reinterpret_cast<std::int32_t*>(probe.allocate(count * sizeof(std::int32_t))), count};
    }
    static CopySpan span_of(Words dst, Words src) {
        return {address_of(dst.data()), address_of(src.data()), src.size_bytes()};
    }
    // Plain reads: call it only after a synchronization, or ThreadSanitizer will say so.
    static std::vector<std::int32_t> values(Words words) { return {words.begin(), words.end()}; }
    static std::vector<std::int32_t> all(std::size_t count, std::int32_t value) {
        return std::vector<std::int32_t>(count, value);
    }
    void fill(Words words, std::int32_t value, StreamHandle on) {
        probe.sim().launch(FillWords{.words = reinterpret_cast<std::uint32_t*>(words.data()),
                                     .count = words.size(),
                                     .value = static_cast<std::uint32_t>(value)},
                           on);
    }
    // Holds the stream until a thread waits for an event or synchronizes. `opened` counts how often that has happened.
    void hold_until_wait(StreamHandle on) {
        probe.at_next_wait([this, gate = probe.close_gate(on)] { open(gate); });
    }
    void hold_until_synchronize(StreamHandle on) {
        probe.at_next_synchronize([this, gate = probe.close_gate(on)] { open(gate); });
    }
    // Breaks the stream: everything on it from now on fails.
    void break_stream(StreamHandle on) {
        const Words word = device_words(1);
        probe.sim().fail_operation(1);
        fill(word, 0, on);
        EXPECT_THROW(probe.sim().synchronize(on), DeviceError);
    }
    bool is_mapped(void* memory) {
        try {
            static_cast<void>(probe.device_address(memory));
            return true;
        } catch (const DeviceError&) {
            return false;
        }
    }

    ProbeDevice probe{1};
    // Does not own the device, because buffers that are kept for good must not keep it and its threads alive.
    std::shared_ptr<Device> device{std::shared_ptr<Device>(), &probe};
    StreamHandle stream = probe.create_stream();
    StreamHandle other = probe.create_stream();
    std::atomic<int> opened = 0;

  private:
    void open(GateHandle gate) {
        ++opened;
        probe.open_gate(gate);
    }
};

}  // namespace kvfix
