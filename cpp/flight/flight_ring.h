// The last notes of a process, in memory that the caller provides: if that is a file, it outlives the process.
// trtllm_kvfix.metrics.flight says what is in it and reads it. Any thread may note; nothing is allocated and nothing is refused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

namespace kvfix {

class FlightRing {
  public:
    static constexpr std::size_t kValues = 4;
    static constexpr std::size_t kTextBytes = 24;
    // number, time in ns, thread, kind, values, text: in that order, without padding.
    static constexpr std::size_t kSlotBytes =
        3 * sizeof(std::uint64_t) + sizeof(std::uint16_t) + 8 * kValues + kTextBytes;

    // Zeroed memory of a whole number of slots; std::invalid_argument for anything else.
    explicit FlightRing(std::span<std::byte> slots);

    // What is too long of the text is left out.
    void note(std::uint16_t kind, const std::array<std::int64_t, kValues>& values, std::string_view text);
    // Goes on in other memory of the same size, with what has been noted so far. When this returns, the old one may go.
    void move_to(std::span<std::byte> slots);
    // Notes so far, the overwritten ones included.
    std::uint64_t noted() const;

  private:
    mutable std::mutex mutex_;  // guards everything below, and the memory
    std::span<std::byte> slots_;
    std::uint64_t number_ = 0;  // of the last note
};

}  // namespace kvfix
