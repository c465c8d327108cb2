// The one lock of a manager. KVFIX_NO_LOCK compiles it out: only the stress program's negative control is built so.
#pragma once

#include <mutex>

#include "core/pause_point.h"

namespace kvfix {

#if defined(KVFIX_NO_LOCK)
struct ManagerMutex {
    void lock() {}
    void unlock() {}
};
#elif defined(KVFIX_PAUSE_POINTS)
// Says when a caller finds the lock taken: so a test knows a thread that waits from one that has not come yet.
class ManagerMutex {
  public:
    void lock() {
        if (!mutex_.try_lock()) {
            KVFIX_PAUSE("lock.contended");
            mutex_.lock();
        }
    }
    void unlock() { mutex_.unlock(); }

  private:
    std::mutex mutex_;
};
#else
using ManagerMutex = std::mutex;
#endif

using ManagerGuard = std::lock_guard<ManagerMutex>;

}  // namespace kvfix
