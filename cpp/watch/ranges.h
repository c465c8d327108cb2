// Which memory of the process is pinned: what the driver allocated or registered, and has not taken back.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <shared_mutex>
#include <vector>

namespace kvfix::watch {

struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool empty() const { return begin == end; }
};

class Ranges {
  public:
    void add(std::uintptr_t begin, std::size_t bytes);
    Range remove(std::uintptr_t begin);
    // The range that holds the address, or an empty one.
    Range find(std::uintptr_t address) const;
    // Costs two reads and no lock: almost every word that is asked for is device memory, or no address at all.
    bool near(std::uintptr_t word) const {
        const std::uintptr_t granule = word / kGranule;
        return granule < kGranules &&
               (granules_[granule / 64].load(std::memory_order_relaxed) >> granule % 64 & 1U) != 0;
    }

  private:
    // The driver gives device memory and host memory out in pieces of this size.
    static constexpr std::uintptr_t kGranule = std::uintptr_t{2} << 20;
    static constexpr std::uintptr_t kGranules = (std::uintptr_t{1} << 47) / kGranule;

    std::vector<Range>::const_iterator after(std::uintptr_t address) const;
    // From the granule `first` to `last`, both included.
    void mark(std::uintptr_t first, std::uintptr_t last, bool pinned);

    mutable std::shared_mutex mutex_;
    std::vector<Range> sorted_;
    // A bit for each granule that holds pinned memory. The kernel gives memory only to what is used of it.
    using Bits = std::atomic<std::uint64_t>;
    std::unique_ptr<Bits[], void (*)(void*)> granules_{static_cast<Bits*>(std::calloc(kGranules / 64, sizeof(Bits))),
                                                       std::free};
};

}  // namespace kvfix::watch
