// Which memory of the process is pinned: what the driver allocated or registered, and has not taken back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "hostrace/owned_lock.h"
#include "hostrace/use.h"

namespace hostrace {

struct Range : Span {
    // The driver fills whole pages with what it allocates. What a program registers may share its first and its last page
    // with anything: a lock of the C library in there would end the program.
    bool registered = false;
    std::uint32_t stack = 0;  // of the call that pinned it

    // Nothing in it is anybody else's.
    Span whole() const { return registered ? Span{*this} : pages_around(*this); }
};

class Ranges {
  public:
    void add(std::uintptr_t begin, std::size_t bytes, bool registered = false, std::uint32_t stack = 0) {
        static_cast<void>(remove(begin));
        const std::unique_lock held(lock_);
        sorted_.insert(after(begin), {{begin, begin + bytes}, registered, stack});
        mark(begin / kGranule, (begin + bytes - 1) / kGranule + 1, true);
    }

    Span remove(std::uintptr_t begin) {
        const std::unique_lock held(lock_);
        const auto behind = after(begin);
        if (behind == sorted_.begin() || std::prev(behind)->begin != begin) {
            return {};
        }
        const Span range = *std::prev(behind);
        const auto next = sorted_.erase(std::prev(behind));
        // Those beside it may share its first and its last granule.
        std::uintptr_t first = begin / kGranule;
        std::uintptr_t end = (range.end - 1) / kGranule + 1;
        first += next != sorted_.begin() && (std::prev(next)->end - 1) / kGranule == first ? 1 : 0;
        end -= next != sorted_.end() && next->begin / kGranule == end - 1 ? 1 : 0;
        mark(first, end, false);
        return range;
    }

    // The range that holds the address, or an empty one.
    Range find(std::uintptr_t address) const {
        if (!near(address)) {
            return {};
        }
        const std::shared_lock held(lock_);
        const auto behind = after(address);
        return behind != sorted_.begin() && address < std::prev(behind)->end ? *std::prev(behind) : Range{};
    }

    // Costs two reads and no lock: almost every word that is asked for is device memory, or no address at all.
    bool near(std::uintptr_t word) const {
        const std::uintptr_t granule = word / kGranule;
        return granule < kGranules &&
               (granules_[granule / 64].load(std::memory_order_relaxed) >> granule % 64 & 1U) != 0;
    }

    // The same of any of the bytes.
    bool near(std::uintptr_t begin, std::size_t bytes) const {
        const std::uintptr_t last = std::min(begin + std::min(bytes - 1, ~begin), kGranules * kGranule - 1);
        for (std::uintptr_t at = begin; at / kGranule <= last / kGranule; at += kGranule) {
            if (near(at)) {
                return true;
            }
        }
        return false;
    }

    // Whether any of it is pinned, or registered by the program, perhaps where nobody can say so now: this may be asked in a
    // signal handler.
    bool meet(Span span) const {
        return meets(span, [](const Range&) { return true; });
    }
    bool meet_registered(Span span) const {
        return meets(span, [](const Range& range) { return range.registered; });
    }

  private:
    // The driver gives device memory and host memory out in pieces of this size.
    static constexpr std::uintptr_t kGranule = std::uintptr_t{2} << 20;
    static constexpr std::uintptr_t kGranules = (std::uintptr_t{1} << 47) / kGranule;

    template <typename Counts>
    bool meets(Span span, Counts counts) const {
        if (!near(span.begin, span.end - span.begin)) {
            return false;
        }
        const std::shared_lock held(lock_, std::try_to_lock);
        if (!held) {
            return true;
        }
        const auto behind = after(span.end - 1);
        return behind != sorted_.begin() && span.begin < std::prev(behind)->end && counts(*std::prev(behind));
    }

    std::vector<Range>::const_iterator after(std::uintptr_t address) const {
        return std::upper_bound(sorted_.begin(), sorted_.end(), address,
                                [](std::uintptr_t value, const Range& range) { return value < range.begin; });
    }

    void mark(std::uintptr_t first, std::uintptr_t end, bool pinned) {
        for (std::uintptr_t granule = first; granule < std::min(end, kGranules); ++granule) {
            const std::uint64_t bit = std::uint64_t{1} << granule % 64;
            Bits& bits = granules_[granule / 64];
            pinned ? bits.fetch_or(bit, std::memory_order_relaxed) : bits.fetch_and(~bit, std::memory_order_relaxed);
        }
    }

    mutable ReadersLock lock_;
    std::vector<Range> sorted_;
    // A bit for each granule that holds pinned memory. The kernel gives memory only to what is used of it.
    using Bits = std::atomic<std::uint64_t>;
    std::unique_ptr<Bits[], void (*)(void*)> granules_{static_cast<Bits*>(std::calloc(kGranules / 64, sizeof(Bits))),
                                                       std::free};
};

}  // namespace hostrace
