#include "core/manager_mutex.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace kvfix {

// Held over a fork. A thread with a manager's lock waits for nothing, so this takes no longer than the calls that run.
struct LocksOfAllManagers {
    static void hold() {
        alive_mutex().lock();
        for (ManagerMutex* each : alive()) {
            each->take();
        }
    }
    static void let_go() {
        for (ManagerMutex* each : alive()) {
            each->unlock();
        }
        alive_mutex().unlock();
    }
    // The threads that wait for a manager exist in the parent alone: the child would wait for their turns for ever.
    static void let_go_in_child() {
        for (ManagerMutex* each : alive()) {
            each->mutex_.forget_waiters();
        }
        let_go();
    }

    // Never destroyed: a thread may end its manager after the process's static objects have gone.
    static std::mutex& alive_mutex() {
        static auto& instance = *new std::mutex;
        return instance;
    }
    static std::vector<ManagerMutex*>& alive() {
        static auto& instance = *new std::vector<ManagerMutex*>;
        return instance;
    }
};

namespace {

[[maybe_unused]] const int kRegistered =
    pthread_atfork(&LocksOfAllManagers::hold, &LocksOfAllManagers::let_go, &LocksOfAllManagers::let_go_in_child);

}  // namespace

ManagerMutex::ManagerMutex(const char* whose) : whose_(whose) {
    const std::lock_guard guard(LocksOfAllManagers::alive_mutex());
    LocksOfAllManagers::alive().push_back(this);
}

ManagerMutex::~ManagerMutex() {
    const std::lock_guard guard(LocksOfAllManagers::alive_mutex());
    std::erase(LocksOfAllManagers::alive(), this);
}

}  // namespace kvfix
