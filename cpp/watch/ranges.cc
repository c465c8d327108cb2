#include "watch/ranges.h"

#include <algorithm>
#include <mutex>

namespace kvfix::watch {

void Ranges::add(std::uintptr_t begin, std::size_t bytes) {
    const std::unique_lock held(mutex_);
    ends_[begin] = begin + bytes;
    lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), begin), std::memory_order_relaxed);
    highest_.store(std::max(highest_.load(std::memory_order_relaxed), begin + bytes), std::memory_order_relaxed);
}

Range Ranges::remove(std::uintptr_t begin) {
    const std::unique_lock held(mutex_);
    const auto at = ends_.find(begin);
    if (at == ends_.end()) {
        return {};
    }
    const Range range{at->first, at->second};
    ends_.erase(at);
    return range;
}

Range Ranges::find(std::uintptr_t address) const {
    if (!near(address)) {
        return {};
    }
    const std::shared_lock held(mutex_);
    auto after = ends_.upper_bound(address);
    if (after == ends_.begin()) {
        return {};
    }
    --after;
    return address < after->second ? Range{after->first, after->second} : Range{};
}

}  // namespace kvfix::watch
