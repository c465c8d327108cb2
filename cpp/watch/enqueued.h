// What one call of the program has enqueued, turned into uses of pinned memory.
#pragma once

#include "watch/driver.h"
#include "watch/ranges.h"
#include "watch/streams.h"
#include "watch/watcher.h"

namespace kvfix::watch {

class Enqueued {
  public:
    Enqueued(Watcher& watch, Streams& streams, const Ranges& ranges, const StreamKey& key)
        : watch_(watch), streams_(streams), ranges_(ranges), key_(key) {}

    // One side of a copy or a memset; nothing happens where the memory is not pinned.
    void side(Shape shape, Kind kind, bool device_writes) { add(shape, kind, device_writes, true); }
    // An address that a kernel was given: what it does there, and how far it goes, is not known.
    void pointer(std::uintptr_t address, Kind kind);
    void add(const Shape& shape, Kind kind, bool device_writes, bool certain);

  private:
    static constexpr std::size_t kKernelBytesMax = std::size_t{64} << 20;

    Watcher& watch_;
    Streams& streams_;
    const Ranges& ranges_;
    StreamKey key_;
    // Taken for the first use: the stream's mark, and where the program is.
    bool marked_ = false;
    Mark mark_;
    std::uint32_t stack_ = 0;
    std::uint64_t since_ns_ = 0;
};

}  // namespace kvfix::watch
