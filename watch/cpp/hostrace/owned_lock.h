// Locks that signal handlers take, too. They call nothing that a program or a sanitizer may have replaced: a lock of the C
// library would be theirs, and may make the very call into the kernel that the handler is there for.
#pragma once

#include <sys/syscall.h>
#include <csignal>
#include <cstdint>

#include <atomic>

#include "hostrace/libc.h"

namespace hostrace {

// An address of one's own is a name for the calling thread that costs no system call and is safe in a handler.
inline const void* this_thread() {
    [[gnu::tls_model("initial-exec")]] static thread_local char name;
    return &name;
}

// How many of our locks the thread has or waits for, and which signals came meanwhile: a handler of the program may jump
// out of what it has interrupted, and the lock would never be free again. So they come again behind it.
class AtOurBooks {
  public:
    static bool now() { return held.load(std::memory_order_relaxed) != 0; }
    static void begin() { held.store(held.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
    static void end() {
        held.store(held.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
        if (!now() && put_off.load(std::memory_order_relaxed) != 0) {
            const std::uint64_t signals = put_off.exchange(0, std::memory_order_relaxed);
            libc::syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &signals, nullptr, sizeof signals);
        }
    }
    // It was sent again, and is blocked until then.
    static void put_off_signal(std::uint64_t bit) { put_off.fetch_or(bit, std::memory_order_relaxed); }

  private:
    [[gnu::tls_model("initial-exec")]] static inline constinit thread_local std::atomic<int> held{0};
    [[gnu::tls_model("initial-exec")]] static inline constinit thread_local std::atomic<std::uint64_t> put_off{0};
};

// A spin lock that knows its owner: a handler that interrupted the owner must be able to see that waiting would be for
// ever.
class OwnedLock {
  public:
    bool mine() const { return owner_.load(std::memory_order_relaxed) == this_thread(); }

    void lock() {
        AtOurBooks::begin();
        const void* nobody = nullptr;
        for (int spins = 0; !owner_.compare_exchange_weak(nobody, this_thread(), std::memory_order_acquire); ++spins) {
            nobody = nullptr;
            if (spins > 100) {
                libc::sched_yield();
            }
        }
    }
    // False where this thread has it already.
    bool lock_unless_mine() {
        if (mine()) {
            return false;
        }
        lock();
        return true;
    }
    void unlock() {
        owner_.store(nullptr, std::memory_order_release);
        AtOurBooks::end();
    }
    // In a forked child: whoever had it is not here.
    void forget_owner() { owner_.store(nullptr, std::memory_order_release); }

  private:
    std::atomic<const void*> owner_{nullptr};
};

// For many readers or one writer. Handlers only try: they may have interrupted the writer.
class ReadersLock {
  public:
    void lock() {
        AtOurBooks::begin();
        for (int readers = 0; !readers_.compare_exchange_weak(readers, kWriter, std::memory_order_acquire);
             readers = 0) {
            libc::sched_yield();
        }
    }
    void unlock() {
        readers_.store(0, std::memory_order_release);
        AtOurBooks::end();
    }

    bool try_lock_shared() {
        AtOurBooks::begin();
        int readers = readers_.load(std::memory_order_relaxed);
        while (readers != kWriter) {
            if (readers_.compare_exchange_weak(readers, readers + 1, std::memory_order_acquire)) {
                return true;
            }
        }
        AtOurBooks::end();
        return false;
    }
    void lock_shared() {
        while (!try_lock_shared()) {
            libc::sched_yield();
        }
    }
    void unlock_shared() {
        readers_.fetch_sub(1, std::memory_order_release);
        AtOurBooks::end();
    }

  private:
    static constexpr int kWriter = -1;
    std::atomic<int> readers_{0};
};

}  // namespace hostrace
