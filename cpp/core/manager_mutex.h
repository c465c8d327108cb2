// The one lock of a manager. KVFIX_NO_LOCK compiles it out: only the negative control of the stress programs is built so.
//
// A fork waits until no call is inside any manager, so that the child's copies are whole and can be freed. To use one there is
// refused: it has its parent's books, but not its cache.
#pragma once

#include <mutex>

#include "core/fair_mutex.h"
#include "process/home_process.h"

namespace kvfix {

class ManagerMutex {
  public:
    // `whose` names what it guards, for the error in a child.
    explicit ManagerMutex(const char* whose = "this BlockManager");
    ManagerMutex(const ManagerMutex&) = delete;
    ManagerMutex& operator=(const ManagerMutex&) = delete;
    ~ManagerMutex();

    void lock() {
        home_.check(whose_);
        take();
    }

#if defined(KVFIX_NO_LOCK)
    bool try_lock() { return true; }
    void unlock() {}
#else
    bool try_lock() {
        home_.check(whose_);
        return mutex_.try_lock();
    }
    void unlock() { mutex_.unlock(); }
#endif

  private:
    friend struct LocksOfAllManagers;

#if defined(KVFIX_NO_LOCK)
    void take() {}
#else
    void take() { mutex_.lock(); }
#endif

    const char* const whose_;
    const HomeProcess home_;
    FairMutex mutex_;
};

using ManagerGuard = std::lock_guard<ManagerMutex>;

}  // namespace kvfix
