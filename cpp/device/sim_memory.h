// The memory that the simulated device can address: its own (host heap), pinned memory that it mapped, and memory of
// others that was registered with it. It refuses everything else, as a driver would.
//
// There is one lock. A read or write of tracked memory holds it shared, through Access, for as long as it takes. Giving
// a range back holds it alone. So a range never disappears under an operation that has begun. An operation that has not
// begun finds the range gone and fails: its owner let the memory go before its fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <shared_mutex>
#include <string>

namespace kvfix {

class SimMemory {
  public:
    SimMemory() = default;
    SimMemory(const SimMemory&) = delete;
    SimMemory& operator=(const SimMemory&) = delete;
    ~SimMemory();

    // Filled with kUnwritten, so that a read of memory that was never written shows.
    std::uintptr_t allocate(std::size_t bytes);
    void release(std::uintptr_t address);
    void* map(std::size_t bytes);  // zeroed, on pages of its own
    void unmap(void* memory, std::size_t bytes);
    void register_host(void* memory, std::size_t bytes);
    void unregister_host(void* memory);

    static constexpr unsigned char kUnwritten = 0xcd;

    class Access {
      public:
        explicit Access(const SimMemory& memory) : memory_(memory), lock_(memory.mutex_) {}
        // Throws DeviceError unless all the bytes lie in one range. `what` begins the message, for example "copy
        // source".
        void require(std::uintptr_t address, std::size_t bytes, const char* what) const;
        void require_pinned(std::uintptr_t address) const;

      private:
        const SimMemory& memory_;
        std::shared_lock<std::shared_mutex> lock_;
    };

  private:
    enum class Kind : std::uint8_t { device, mapped, registered };
    struct Range {
        std::size_t bytes;
        Kind kind;
    };
    using Ranges = std::map<std::uintptr_t, Range>;

    static const char* name_of(Kind kind);
    static void free_range(std::uintptr_t address, const Range& range);
    Ranges::const_iterator range_around(std::uintptr_t address) const;
    void add(std::uintptr_t address, Range range);
    void take(std::uintptr_t address, Kind kind, const std::size_t* bytes);

    mutable std::shared_mutex mutex_;
    Ranges ranges_;  // by first address, disjoint
};

std::string hex(std::uintptr_t address);
// The product, for the size of a range. Throws DeviceError if it would wrap around.
std::size_t checked_bytes(std::initializer_list<std::uint64_t> factors);

}  // namespace kvfix
