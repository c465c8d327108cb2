// Common parts of the device tests: a device, memory of int32 words, and a CPU that writes racily.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/sim_device.h"
#include "kernels/relaxed.h"
#include "tests/device_error.h"

namespace kvfix {

inline std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// The CPU's store into a buffer whose read may be pending: a race by design, see kernels/relaxed.h.
inline void racy_fill(std::span<std::int32_t> words, std::int32_t value) {
    for (std::int32_t& word : words) {
        store_relaxed(&word, value);
    }
}

class SimDeviceTest : public ::testing::Test {
  protected:
    using Words = std::span<std::int32_t>;

    Words pinned(std::size_t count) {
        return {static_cast<std::int32_t*>(device.map_pinned(count * sizeof(std::int32_t))), count};
    }
    Words device_words(std::size_t count) {
        return {reinterpret_cast<std::int32_t*>(device.allocate(count * sizeof(std::int32_t))), count};
    }
    static CopySpan span_of(Words dst, Words src) {
        return {address_of(dst.data()), address_of(src.data()), src.size_bytes()};
    }
    void copy(Words dst, Words src, StreamHandle on) { device.copy(span_of(dst, src), on); }
    void fill(Words words, std::uint32_t value, StreamHandle on) {
        device.launch(FillWords{reinterpret_cast<std::uint32_t*>(words.data()), words.size(), value}, on);
    }
    // Plain reads: call it only after a synchronization, or ThreadSanitizer will say so.
    static std::vector<std::int32_t> values(Words words) { return {words.begin(), words.end()}; }
    static std::vector<std::int32_t> all(std::size_t count, std::int32_t value) {
        return std::vector<std::int32_t>(count, value);
    }

    SimDevice device{1};
    StreamHandle stream = device.create_stream();
};

}  // namespace kvfix
