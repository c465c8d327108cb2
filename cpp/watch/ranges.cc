#include "watch/ranges.h"

#include <algorithm>
#include <mutex>

namespace kvfix::watch {

std::vector<Range>::const_iterator Ranges::after(std::uintptr_t address) const {
    return std::upper_bound(sorted_.begin(), sorted_.end(), address,
                            [](std::uintptr_t value, const Range& range) { return value < range.begin; });
}

void Ranges::mark(std::uintptr_t first, std::uintptr_t last, bool pinned) {
    for (std::uintptr_t granule = first; granule <= last && granule < kGranules; ++granule) {
        const std::uint64_t bit = std::uint64_t{1} << granule % 64;
        if (pinned) {
            granules_[granule / 64].fetch_or(bit, std::memory_order_relaxed);
        } else {
            granules_[granule / 64].fetch_and(~bit, std::memory_order_relaxed);
        }
    }
}

void Ranges::add(std::uintptr_t begin, std::size_t bytes) {
    static_cast<void>(remove(begin));
    const std::unique_lock held(mutex_);
    sorted_.insert(after(begin), {begin, begin + bytes});
    mark(begin / kGranule, (begin + bytes - 1) / kGranule, true);
}

Range Ranges::remove(std::uintptr_t begin) {
    const std::unique_lock held(mutex_);
    const auto behind = after(begin);
    if (behind == sorted_.begin() || std::prev(behind)->begin != begin) {
        return {};
    }
    const Range range = *std::prev(behind);
    const auto next = sorted_.erase(std::prev(behind));
    // Those beside it may share its first and its last granule.
    std::uintptr_t first = begin / kGranule;
    std::uintptr_t end = (range.end - 1) / kGranule + 1;
    first += next != sorted_.begin() && (std::prev(next)->end - 1) / kGranule == first ? 1 : 0;
    end -= next != sorted_.end() && next->begin / kGranule == end - 1 ? 1 : 0;
    if (first < end) {
        mark(first, end - 1, false);
    }
    return range;
}

Range Ranges::find(std::uintptr_t address) const {
    if (!near(address)) {
        return {};
    }
    const std::shared_lock held(mutex_);
    const auto behind = after(address);
    return behind != sorted_.begin() && address < std::prev(behind)->end ? *std::prev(behind) : Range{};
}

}  // namespace kvfix::watch
