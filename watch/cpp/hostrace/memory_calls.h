// The program's own calls about its memory. Where it protects, unmaps or moves pinned memory, it gets what it asked for:
// our protection goes first, and none comes back there. Where the kernel has to reach the pages (mlock, madvise), they are
// open meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include "hostrace/guard.h"
#include "hostrace/owned_lock.h"

namespace hostrace {

struct Watcher;

// Pinned memory that the program protects itself.
class LeftAlone {
  public:
    // False where there is no room for it.
    bool add(Span span) {
        const bool mine = !lock_.lock_unless_mine();
        const std::size_t end = end_.load(std::memory_order_relaxed);
        const bool room = end < spans_.size();
        if (room) {
            spans_[end] = span;
            end_.store(end + 1, std::memory_order_relaxed);
        }
        if (!mine) {
            lock_.unlock();
        }
        return room;
    }
    // It may be read and written again, or is no longer pinned.
    void remove(Span span) {
        if (end_.load(std::memory_order_relaxed) != 0 && lock_.lock_unless_mine()) {
            const auto* const last =
                std::remove_if(spans_.begin(), spans_.begin() + end_.load(std::memory_order_relaxed),
                               [&](const Span& each) { return span.begin <= each.begin && each.end <= span.end; });
            end_.store(static_cast<std::size_t>(last - spans_.data()), std::memory_order_relaxed);
            lock_.unlock();
        }
    }
    bool meets(Span span) {
        return any([&](const Span& each) { return each.meets(span); }, true);
    }
    bool holds(Span span) {
        return any([&](const Span& each) { return each.begin <= span.begin && span.end <= each.end; }, false);
    }

  private:
    // `unknown` where a handler asks that interrupted us here.
    template <typename Is>
    bool any(Is is, bool unknown) {
        if (end_.load(std::memory_order_relaxed) == 0) {
            return false;
        }
        if (!lock_.lock_unless_mine()) {
            return unknown;
        }
        const bool found = std::any_of(spans_.begin(), spans_.begin() + end_.load(std::memory_order_relaxed), is);
        lock_.unlock();
        return found;
    }

    OwnedLock lock_;
    std::array<Span, 64> spans_{};
    std::atomic<std::size_t> end_{0};
};

// Others reach these pages past us from now on: none of them is protected any more. What copies read there is compared.
void leave_alone(Watcher& watch, Span span);
// The same of whatever is pinned there.
void leave_alone(const void* begin, std::size_t bytes);

// This thread comes back to none of the calls that it is in.
void leave_calls();

// Around a call into the kernel, by its number; other calls cost nothing.
class MemoryCall {
  public:
    MemoryCall(long number, const std::array<long, 6>& arguments);
    MemoryCall(const MemoryCall&) = delete;
    MemoryCall& operator=(const MemoryCall&) = delete;
    ~MemoryCall();

  private:
    Opening opening_;
};

}  // namespace hostrace
