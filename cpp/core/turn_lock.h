// A recursive lock for code that is not ours. Its holder has the turn; the others queue in order of arrival.
//
// Callers of the bound manager take it around each call, so that no two threads are inside at once (hazard H4). It is
// recursive because a call may come back into Python and call the manager again, in the same thread. It serves first
// come, first served, because the executor calls hundreds of times per iteration and would starve a thread that pins.
//
// A thread that waits must not hold the GIL, because the holder may want it. Nobody waits while holding the inner
// mutex, so it is safe to try with the GIL held.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

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
    };

    TurnLock() = default;
    TurnLock(const TurnLock&) = delete;
    TurnLock& operator=(const TurnLock&) = delete;
    ~TurnLock() {
        if (home_.left()) {  // its end would wait for threads that wait for a turn in the parent alone
            static_cast<void>(freed_.release());
        }
    }

    // Takes the lock if no wait is needed: it is free and no thread queues, or this thread already holds it. A child of
    // fork() is refused: the holder may be a thread that it does not have.
    bool try_acquire() {
        home_.check("this TurnLock");
        const std::lock_guard guard(mutex_);
        if (depth_ > 0 ? owner_ != std::this_thread::get_id() : !queue_.empty()) {
            return false;
        }
        take();
        return true;
    }

    // Queues for at most `limit`. Returns false if the limit passed first: the lock is not held, and the place in the
    // queue is lost.
    bool acquire_within(std::chrono::duration<double> limit) {
        if (try_acquire()) {
            return true;
        }
        const auto begin = std::chrono::steady_clock::now();
        const std::uint64_t place = enter_queue();
        KVFIX_PAUSE("turn.queued");
        std::unique_lock lock(mutex_);
        const bool served = freed_->wait_for(lock, limit, [&] { return depth_ == 0 && queue_.front() == place; });
        stats_.wait_us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        std::erase(queue_, place);
        if (served) {
            take();
        } else {
            freed_->notify_all();  // the next in the queue may have waited for us alone
        }
        return served;
    }

    // Call it once for each time that the lock was acquired, in the thread that acquired it.
    void release() {
        const std::lock_guard guard(mutex_);
        if (depth_ == 0 || owner_ != std::this_thread::get_id()) {
            throw std::logic_error("TurnLock: released by a thread that does not hold it");
        }
        if (--depth_ == 0 && !queue_.empty()) {
            freed_->notify_all();
        }
    }

    Stats stats() const {
        const std::lock_guard guard(mutex_);
        Stats now = stats_;
        now.queued = queue_.size();
        now.depth = depth_;
        return now;
    }

  private:
    std::uint64_t enter_queue() {
        const std::lock_guard guard(mutex_);
        queue_.push_back(next_place_);
        ++stats_.waits;
        return next_place_++;
    }
    void take() {
        owner_ = std::this_thread::get_id();
        if (depth_++ == 0) {
            ++stats_.turns;
        }
    }

    const HomeProcess home_;
    mutable std::mutex mutex_;  // guards everything below; held for a few instructions only
    std::unique_ptr<std::condition_variable> freed_ = std::make_unique<std::condition_variable>();
    std::thread::id owner_;  // has the turn while depth_ > 0
    std::uint32_t depth_ = 0;
    std::deque<std::uint64_t> queue_;
    std::uint64_t next_place_ = 0;
    Stats stats_;
};

}  // namespace kvfix
