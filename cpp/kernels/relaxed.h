// Accesses of the simulated hardware to memory. A GPU reads and writes while the CPU does, and only fences order the
// two. The unsafe arms of our tests do exactly that: the CPU refills a buffer whose read is pending. With plain loads
// and stores this would be undefined behaviour, and ThreadSanitizer would report the very hazard that the test
// demonstrates. Relaxed atomics, word by word, make it defined and silent. They order nothing: the sanitizer still
// reports a plain access on the CPU that no event or synchronization orders, so it keeps watching our own bookkeeping.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvfix {

template <typename T>
T load_relaxed(const T* from) {
    // C++20 has no atomic_ref of a const type. Nothing is written, so read-only pages are fine.
    return std::atomic_ref<T>(*const_cast<T*>(from)).load(std::memory_order_relaxed);
}

template <typename T>
void store_relaxed(T* to, T value) {
    std::atomic_ref<T>(*to).store(value, std::memory_order_relaxed);
}

template <typename T>
void copy_elements_relaxed(std::uintptr_t dst, std::uintptr_t src, std::size_t count) {
    auto* to = reinterpret_cast<T*>(dst);
    const auto* from = reinterpret_cast<const T*>(src);
    for (std::size_t i = 0; i < count; ++i) {
        store_relaxed(to + i, load_relaxed(from + i));
    }
}

// Copies whole 32-bit words where both sides are aligned, because a DMA engine never tears an aligned table entry
// either.
inline void copy_relaxed(std::uintptr_t dst, std::uintptr_t src, std::size_t bytes) {
    if ((dst | src | bytes) % sizeof(std::uint32_t) == 0) {
        copy_elements_relaxed<std::uint32_t>(dst, src, bytes / sizeof(std::uint32_t));
    } else {
        copy_elements_relaxed<std::uint8_t>(dst, src, bytes);
    }
}

}  // namespace kvfix
