// Locks that signal handlers take, too. They call nothing that a program or a sanitizer may have replaced: a lock of the C
// library would be theirs, and may make the very call into the kernel that the handler is there for.
#pragma once

#include <sched.h>

#include <atomic>

namespace hostrace {

// An address of one's own is a name for the calling thread that costs no system call and is safe in a handler.
inline const void* this_thread() {
    [[gnu::tls_model("initial-exec")]] static thread_local char name;
    return &name;
}

// A spin lock that knows its owner: a handler that interrupted the owner must be able to see that waiting would be for
// ever.
class OwnedLock {
  public:
    bool mine() const { return owner_.load(std::memory_order_relaxed) == this_thread(); }

    void lock() {
        const void* nobody = nullptr;
        for (int spins = 0; !owner_.compare_exchange_weak(nobody, this_thread(), std::memory_order_acquire); ++spins) {
            nobody = nullptr;
            if (spins > 100) {
                sched_yield();
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
    void unlock() { owner_.store(nullptr, std::memory_order_release); }

  private:
    std::atomic<const void*> owner_{nullptr};
};

// For many readers or one writer. Handlers only try: they may have interrupted the writer.
class ReadersLock {
  public:
    void lock() {
        for (int readers = 0; !readers_.compare_exchange_weak(readers, kWriter, std::memory_order_acquire);
             readers = 0) {
            sched_yield();
        }
    }
    void unlock() { readers_.store(0, std::memory_order_release); }

    bool try_lock_shared() {
        int readers = readers_.load(std::memory_order_relaxed);
        while (readers != kWriter) {
            if (readers_.compare_exchange_weak(readers, readers + 1, std::memory_order_acquire)) {
                return true;
            }
        }
        return false;
    }
    void lock_shared() {
        while (!try_lock_shared()) {
            sched_yield();
        }
    }
    void unlock_shared() { readers_.fetch_sub(1, std::memory_order_release); }

  private:
    static constexpr int kWriter = -1;
    std::atomic<int> readers_{0};
};

}  // namespace hostrace
