// The last notes of a process, in memory that the caller provides. If that memory is a file, the notes outlive the
// process. trtllm_kvfix.metrics.flight describes and reads them. Any thread may note; nothing is allocated and nothing
// is refused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

namespace kvfix {

// Kinds that native code notes; the others are Python's.
enum class FlightKind : std::uint16_t { shipped = 7 };

class FlightRing {
  public:
    static constexpr std::size_t kValues = 4;
    static constexpr std::size_t kTextBytes = 24;
    // In this order, without padding: number, time in ns, thread, kind, values, text.
    static constexpr std::size_t kSlotBytes =
        3 * sizeof(std::uint64_t) + sizeof(std::uint16_t) + 8 * kValues + kTextBytes;

    // `slots` is zeroed memory for a whole number of slots; anything else throws std::invalid_argument.
    explicit FlightRing(std::span<std::byte> slots);
    FlightRing(const FlightRing&) = delete;
    FlightRing& operator=(const FlightRing&) = delete;
    ~FlightRing();

    // Native code notes here from now on, until the ring ends or another takes its place. Whoever does that, notes and
    // ends rings excludes the others from doing so (bindings: by the GIL).
    void serve_process();
    // Notes in that ring, if there is one.
    static void note_in_process(FlightKind kind, const std::array<std::int64_t, kValues>& values);

    // Cuts off text that is too long.
    void note(std::uint16_t kind, const std::array<std::int64_t, kValues>& values, std::string_view text);
    // Continues in other memory of the same size, with what has been noted so far. When this returns, the old memory
    // may go.
    void move_to(std::span<std::byte> slots);
    // Counts all notes so far, overwritten ones included.
    std::uint64_t noted() const;

  private:
    mutable std::mutex mutex_;  // guards everything below, and the memory
    std::span<std::byte> slots_;
    std::uint64_t number_ = 0;  // the number of the last note
};

}  // namespace kvfix
