// Host memory that the driver gives without saying so in the call: allocations that are mapped to an address of their own
// (cuMemCreate), and pools.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "hostrace/driver.h"
#include "hostrace/use.h"

namespace hostrace {

class HostMemory {
  public:
    explicit HostMemory(const Driver& driver) : driver_(driver) {}

    static bool of_host(const cuda::Location& place) {
        return place.type >= cuda::kPlaceOfHost && place.type < cuda::kPlaceOfHostEnd;
    }

    // The allocation may be another process's: the driver is asked for what it is.
    void mapped(std::uintptr_t begin, std::size_t bytes, std::uint64_t allocation) {
        cuda::AllocationProperties made{};
        if (driver_.allocation_properties != nullptr &&
            driver_.allocation_properties(&made, allocation) == cuda::kSuccess && of_host(made.location)) {
            const std::lock_guard held(mutex_);
            mapped_[begin] = bytes;
        }
    }
    std::vector<Span> mapped_in(std::uintptr_t begin, std::size_t bytes) const {
        const std::lock_guard held(mutex_);
        std::vector<Span> found;
        for (auto at = mapped_.lower_bound(begin); at != mapped_.end() && at->first < begin + bytes; ++at) {
            found.push_back({at->first, at->first + at->second});
        }
        return found;
    }
    void unmapped(std::uintptr_t begin) {
        const std::lock_guard held(mutex_);
        mapped_.erase(begin);
    }

    enum class Pool : std::uint8_t { other, of_host, managed };
    void pool(cuda::Handle pool, int type, const cuda::Location& place) {
        const std::lock_guard held(mutex_);
        const bool managed = type == cuda::kAllocationManaged;
        pools_[pool] = managed ? Pool::managed : of_host(place) ? Pool::of_host : Pool::other;
    }
    Pool kind_of(cuda::Handle pool) const {
        const std::lock_guard held(mutex_);
        const auto found = pools_.find(pool);
        return found == pools_.end() ? Pool::other : found->second;
    }
    void pool_destroyed(cuda::Handle pool) {
        const std::lock_guard held(mutex_);
        pools_.erase(pool);
    }

  private:
    const Driver& driver_;
    mutable std::mutex mutex_;
    std::map<std::uintptr_t, std::size_t> mapped_;
    std::unordered_map<cuda::Handle, Pool> pools_;
};

}  // namespace hostrace
