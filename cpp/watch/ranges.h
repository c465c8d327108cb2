// Which memory of the process is pinned: what the driver allocated or registered, and has not taken back.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <shared_mutex>

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
    // Costs two reads: almost every address that is asked for is device memory.
    bool near(std::uintptr_t address) const {
        return lowest_.load(std::memory_order_relaxed) <= address && address < highest_.load(std::memory_order_relaxed);
    }

  private:
    mutable std::shared_mutex mutex_;
    std::map<std::uintptr_t, std::uintptr_t> ends_;  // by begin
    std::atomic<std::uintptr_t> lowest_{~std::uintptr_t{0}}, highest_{0};
};

}  // namespace kvfix::watch
