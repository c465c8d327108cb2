// A recursive lock for code that is not ours. Its holder has the turn; the others queue in order of arrival.
//
// Callers of the bound manager take it around each call, so that no two threads are inside at once (hazard H4). It is
// recursive because a call may come back into Python and call the manager again, in the same thread. It serves first
// come, first served, because the executor calls hundreds of times per iteration and would starve a thread that pins.
//
// A thread that waits must not hold the GIL, because the holder may want it. Nobody waits while holding the inner
// mutex, so it is safe to try with the GIL held.
//
// It cannot fail: it allocates nothing, as each waiter brings its place in the queue. A child of fork() has only the
// thread that forked, and may find the inner mutex held by one that it does not have. So there everybody has the turn.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>

#include "core/pause_point.h"
#include "process/home_process.h"

namespace kvfix {

class TurnLock {
  public:
    struct Stats {
        std::uint64_t turns = 0;   // times that the lock went from free to held
        std::uint64_t waits = 0;   // calls that had to queue
        double wait_us = 0;        // their waiting time in sum
        std::uint64_t queued = 0;  // waiting now
        std::uint32_t depth = 0;   // how often its holder holds it now; 0 if nobody does
        std::uint64_t holder = 0;  // the thread that holds it, by pthread_self(); 0 if nobody does
    };

    TurnLock() = default;
    TurnLock(const TurnLock&) = delete;
    TurnLock& operator=(const TurnLock&) = delete;
    ~TurnLock() = default;

    // Takes the lock if no wait is needed: it is free and no thread queues, or this thread already holds it.
    bool try_acquire() noexcept {
        if (home_.left()) {
            return true;
        }
        const std::lock_guard guard(mutex_);
        if (depth_ > 0 ? owner_ != pthread_self() : first_ != nullptr) {
            return false;
        }
        take();
        return true;
    }

    // Queues for at most `limit`. Returns false if the limit passed first: the lock is not held, and the place in the
    // queue is lost.
    bool acquire_within(std::chrono::duration<double> limit) noexcept {
        if (try_acquire()) {
            return true;
        }
        const auto begin = std::chrono::steady_clock::now();
        Waiter waiter;
        enter_queue(waiter);
        KVFIX_PAUSE("turn.queued");
        std::unique_lock lock(mutex_);
        const bool served = waiter.may_go.wait_for(lock, limit, [&] { return depth_ == 0 && first_ == &waiter; });
        stats_.wait_us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        leave_queue(waiter);
        if (served) {
            take();
        } else {
            wake_next();  // it may have waited for us alone
        }
        return served;  // NOLINT(clang-analyzer-core.StackAddressEscape): the queue has let go of the waiter
    }

    // Call it once for each time that the lock was acquired, in the thread that acquired it.
    void release() {
        if (home_.left()) {
            return;
        }
        const std::lock_guard guard(mutex_);
        if (depth_ == 0 || owner_ != pthread_self()) {
            throw std::logic_error("TurnLock: released by a thread that does not hold it");
        }
        if (--depth_ == 0) {
            wake_next();
        }
    }

    Stats stats() const {
        if (home_.left()) {
            return {};
        }
        const std::lock_guard guard(mutex_);
        Stats now = stats_;
        for (const Waiter* each = first_; each != nullptr; each = each->next) {
            ++now.queued;
        }
        now.depth = depth_;
        now.holder = depth_ == 0 ? 0 : std::uint64_t{owner_};
        return now;
    }

  private:
    // On the stack of the thread that waits.
    struct Waiter {
        std::condition_variable may_go;
        Waiter* next = nullptr;
    };

    // The pointer to this waiter, or for nullptr the last one.
    Waiter*& link_to(const Waiter* waiter) {
        Waiter** link = &first_;
        while (*link != waiter) {
            link = &(*link)->next;
        }
        return *link;
    }
    void enter_queue(Waiter& waiter) {
        const std::lock_guard guard(mutex_);
        link_to(nullptr) = &waiter;
        ++stats_.waits;
    }
    void leave_queue(const Waiter& waiter) { link_to(&waiter) = waiter.next; }
    void wake_next() {
        if (first_ != nullptr) {
            first_->may_go.notify_one();
        }
    }
    void take() {
        owner_ = pthread_self();
        if (depth_++ == 0) {
            ++stats_.turns;
        }
    }

    const HomeProcess home_;
    mutable std::mutex mutex_;  // guards everything below; held for a few instructions only
    pthread_t owner_{};         // has the turn while depth_ > 0
    std::uint32_t depth_ = 0;
    Waiter* first_ = nullptr;  // of the queue
    Stats stats_;
};

}  // namespace kvfix
