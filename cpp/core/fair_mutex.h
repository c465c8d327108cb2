// A mutex that threads get in order of arrival: one that releases it and asks again comes after all that wait by then.
//
// std::mutex lets a running thread overtake sleepers for ever: four threads that call in a loop kept a fifth out for a
// minute. Here a caller draws a number and waits for its turn. Without others that costs two atomic additions, as much as
// std::mutex. With others each hand-over may cost a wake-up, so what is done under the lock should be worth one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/pause_point.h"

namespace kvfix {

// Unlike std::mutex it must outlive the call of unlock(), and not only the next holder's turn.
class FairMutex {
  public:
    void lock() {
        const std::uint64_t before = state_.fetch_add(kDraw + 1);
        if (callers(before) != 0) [[unlikely]] {
            await(drawn(before));
        }
    }

    // Succeeds only if no thread has the mutex or waits for it, so that it overtakes none.
    bool try_lock() {
        std::uint64_t before = state_.load();
        while (callers(before) == 0) {
            if (state_.compare_exchange_weak(before, before + kDraw + 1)) {
                return true;
            }
        }
        return false;
    }

    void unlock() {
        const std::uint64_t before = state_.fetch_sub(1);
        if (callers(before) > 1) [[unlikely]] {
            std::atomic<std::uint32_t>& calls = calls_of(turn(before) + 1);
            ++calls;
            calls.notify_all();
        }
    }

    // In a child of fork(), by the thread that holds the lock: the others exist in the parent alone.
    void forget_waiters() { state_.store(1); }

  private:
    // High half: how many numbers were drawn, which wraps round. Low half: callers, the holder and those that wait.
    static constexpr std::uint64_t kDraw = 1ULL << 32;
    static std::uint32_t drawn(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }
    static std::uint32_t callers(std::uint64_t state) { return static_cast<std::uint32_t>(state); }
    // The number whose turn it is.
    static std::uint32_t turn(std::uint64_t state) { return drawn(state) - callers(state); }

    void await(std::uint32_t number) {
        KVFIX_PAUSE("lock.contended");  // a test that sees it knows that the caller has its place
        std::atomic<std::uint32_t>& calls = calls_of(number);
        for (;;) {
            const std::uint32_t heard = calls.load();  // before we look: a call that comes in between ends the sleep
            if (turn(state_.load()) == number) {
                return;
            }
            calls.wait(heard);
        }
    }

    // Waiting callers sleep on one of a few words, so that a call wakes the next in turn and not the whole queue.
    static constexpr std::size_t kWords = 8;
    std::atomic<std::uint32_t>& calls_of(std::uint32_t number) { return calls_[number % kWords]; }

    std::atomic<std::uint64_t> state_{0};
    std::array<std::atomic<std::uint32_t>, kWords> calls_{};
};

}  // namespace kvfix
