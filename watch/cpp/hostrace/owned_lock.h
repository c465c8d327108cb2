// A spin lock that knows its owner. Signal handlers take it too, so one that interrupted the owner must be able to see
// that waiting would be for ever.
#pragma once

#include <sched.h>

#include <atomic>

namespace hostrace {

// An address of one's own is a name for the calling thread that costs no system call and is safe in a handler.
inline const void* this_thread() {
    [[gnu::tls_model("initial-exec")]] static thread_local char name;
    return &name;
}

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

}  // namespace hostrace
