// Locks of the C library that lie in pinned memory. Its calls into the kernel about them come from its own inside, and it
// ends the program where one fails in a protected page: their pages stay open until its function has returned. What it is
// told by address besides, such as a time, is open as well.
#include <pthread.h>
#include <semaphore.h>
#include <threads.h>

#include "hostrace/interpose.h"
#include "hostrace/settled.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

template <typename T>
Span whole(const T* object) {
    const auto begin = reinterpret_cast<std::uintptr_t>(object);
    return {begin, begin + sizeof *object};
}

// Our own books have locks, too, and may lie close to memory that the program registered.
class InOurBooks {
  public:
    InOurBooks() { self().inside = true; }
    InOurBooks(const InOurBooks&) = delete;
    InOurBooks& operator=(const InOurBooks&) = delete;
    ~InOurBooks() { self().inside = false; }
};

template <typename... Objects>
Opened opened_for(const Objects*... objects) {
    const InOurBooks meanwhile;
    return Opened(whole(objects)...);
}

// The kernel takes a robust lock from a thread that ends, however it ends: no call is there to open the page.
bool is_robust(const pthread_mutex_t* mutex) {
    constexpr int kRobust = 16;
    return (mutex->__data.__kind & kRobust) != 0;
}
bool is_robust(const void* /*other*/) { return false; }

// What a program registers may have locks in it for which threads wait already: their calls opened nothing. Whoever wakes
// them comes here first.
template <typename Lock>
void leave_alone_if_needed(const Lock* lock) {
    const InOurBooks meanwhile;
    const Span span = whole(lock);
    Watcher* watch = watcher();
    if (watch != nullptr && watch->ranges.meet(span) && (is_robust(lock) || watch->ranges.meet_registered(span))) {
        leave_alone(*watch, pages_around(span));
    }
}

template <typename Call, typename Lock, typename... Others>
auto with_open(Call call, const Lock* lock, const Others*... others) {
    const Watcher* watch = watcher();
    const auto near = [&](const void* object) { return watch->ranges.near(reinterpret_cast<std::uintptr_t>(object)); };
    if (watch == nullptr || !(near(lock) || ... || near(others)) || self().inside) {
        return call();
    }
    const Opened opened = opened_for(lock, others...);
    leave_alone_if_needed(lock);
    return call();
}

}  // namespace
}  // namespace hostrace

using namespace hostrace;

// Ours have names of their own in C++, since the C library's headers declare each in a way of its own.
#define HOSTRACE_LOCK_OF(result, name, parameters, arguments, ...)          \
    HOSTRACE_EXPORT result lock_##name parameters __asm__(#name);           \
    result lock_##name parameters {                                         \
        HOSTRACE_FOUND_AT_START static Next<result parameters> next(#name); \
        return with_open([&] { return next arguments; }, __VA_ARGS__);      \
    }
#define HOSTRACE_LOCK(name, type) HOSTRACE_LOCK_OF(int, name, (type lock), (lock), lock)
#define HOSTRACE_LOCK_IN_TIME(name, type) \
    HOSTRACE_LOCK_OF(int, name, (type lock, const timespec* time), (lock, time), lock, time)
#define HOSTRACE_LOCK_BY_CLOCK(name, type) \
    HOSTRACE_LOCK_OF(int, name, (type lock, clockid_t clock, const timespec* time), (lock, clock, time), lock, time)

HOSTRACE_LOCK(pthread_mutex_lock, pthread_mutex_t*)
HOSTRACE_LOCK(pthread_mutex_trylock, pthread_mutex_t*)
HOSTRACE_LOCK(pthread_mutex_unlock, pthread_mutex_t*)
HOSTRACE_LOCK_IN_TIME(pthread_mutex_timedlock, pthread_mutex_t*)
HOSTRACE_LOCK_BY_CLOCK(pthread_mutex_clocklock, pthread_mutex_t*)
HOSTRACE_LOCK_OF(int, pthread_cond_wait, (pthread_cond_t * changed, pthread_mutex_t* mutex), (changed, mutex), changed,
                 mutex)
HOSTRACE_LOCK_OF(int, pthread_cond_timedwait, (pthread_cond_t * changed, pthread_mutex_t* mutex, const timespec* time),
                 (changed, mutex, time), changed, mutex, time)
HOSTRACE_LOCK_OF(int, pthread_cond_clockwait,
                 (pthread_cond_t * changed, pthread_mutex_t* mutex, clockid_t clock, const timespec* time),
                 (changed, mutex, clock, time), changed, mutex, time)
HOSTRACE_LOCK(pthread_cond_signal, pthread_cond_t*)
HOSTRACE_LOCK(pthread_cond_broadcast, pthread_cond_t*)
HOSTRACE_LOCK(pthread_cond_destroy, pthread_cond_t*)
HOSTRACE_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t*)
HOSTRACE_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t*)
HOSTRACE_LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t*)
HOSTRACE_LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t*)
HOSTRACE_LOCK(pthread_rwlock_unlock, pthread_rwlock_t*)
HOSTRACE_LOCK_IN_TIME(pthread_rwlock_timedrdlock, pthread_rwlock_t*)
HOSTRACE_LOCK_IN_TIME(pthread_rwlock_timedwrlock, pthread_rwlock_t*)
HOSTRACE_LOCK_BY_CLOCK(pthread_rwlock_clockrdlock, pthread_rwlock_t*)
HOSTRACE_LOCK_BY_CLOCK(pthread_rwlock_clockwrlock, pthread_rwlock_t*)
HOSTRACE_LOCK(sem_wait, sem_t*)
HOSTRACE_LOCK(sem_post, sem_t*)
HOSTRACE_LOCK_IN_TIME(sem_timedwait, sem_t*)
HOSTRACE_LOCK_BY_CLOCK(sem_clockwait, sem_t*)
HOSTRACE_LOCK(pthread_barrier_wait, pthread_barrier_t*)
HOSTRACE_LOCK(pthread_barrier_destroy, pthread_barrier_t*)
HOSTRACE_LOCK_OF(int, pthread_once, (pthread_once_t * once, void (*runs)()), (once, runs), once)
// The same of C11.
HOSTRACE_LOCK(mtx_lock, mtx_t*)
HOSTRACE_LOCK(mtx_trylock, mtx_t*)
HOSTRACE_LOCK(mtx_unlock, mtx_t*)
HOSTRACE_LOCK_IN_TIME(mtx_timedlock, mtx_t*)
HOSTRACE_LOCK_OF(int, cnd_wait, (cnd_t * changed, mtx_t* mutex), (changed, mutex), changed, mutex)
HOSTRACE_LOCK_OF(int, cnd_timedwait, (cnd_t * changed, mtx_t* mutex, const timespec* time), (changed, mutex, time),
                 changed, mutex, time)
HOSTRACE_LOCK(cnd_signal, cnd_t*)
HOSTRACE_LOCK(cnd_broadcast, cnd_t*)
HOSTRACE_LOCK(cnd_destroy, cnd_t*)
HOSTRACE_LOCK_OF(void, call_once, (once_flag * once, void (*runs)()), (once, runs), once)
