// Functions of the C library that are called through us where the library is preloaded. Each does what the original
// does, after what keeps the two from harming each other:
// - a thread that blocked these signals would be killed by its first touch: they stay unblocked;
// - who started a thread is noted, because workers without Python touch memory on behalf of one that has it.
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <span>

#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/masked.h"
#include "hostrace/memory_calls.h"
#include "hostrace/raw_calls.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

HOSTRACE_NEXT(pthread_sigmask);
HOSTRACE_NEXT(sigprocmask);
HOSTRACE_NEXT(pthread_create);
HOSTRACE_NEXT(thrd_create);

template <typename F>
int masked(F& next, int how, const sigset_t* set, sigset_t* before) {
    Thread& thread = self();
    const std::uint64_t was = thread.blocked;
    const Masked mask(set);
    sigset_t told;
    const int result = next(how, mask.given, before == nullptr ? nullptr : &told);
    if (result != 0) {
        return result;
    }
    if (before != nullptr) {
        Masked::tell(&told, was);
        *before = told;
    }
    if (set != nullptr) {
        const std::uint64_t blocked = how == SIG_UNBLOCK ? was & ~mask.bits : mask.bits | (how == SIG_BLOCK ? was : 0);
        if (blocked != was && !in_child_of_vfork()) {
            thread.blocked = blocked;
            send_what_waited();
        }
    }
    return result;
}

// Threads of C11 answer with a number.
template <typename Result>
struct Start {
    Result (*routine)(void*);
    void* argument;
    int parent;
    void* parent_python;
    std::uint64_t blocked;
};

// No handler of ours could start on a stack that is protected, and the C library has its own of the thread there, too.
void leave_stack_alone(const pthread_attr_t* attributes) {
    void* begin = nullptr;
    std::size_t bytes = 0;
    if (attributes != nullptr && pthread_attr_getstack(attributes, &begin, &bytes) == 0 && begin != nullptr) {
        leave_alone(begin, bytes);
    }
}

template <typename Result>
Result started(void* raw) {
    auto* given = static_cast<Start<Result>*>(raw);
    const Start<Result> start = *given;
    delete given;
    if (watcher() != nullptr) {
        ask_for_raw_calls_of_this_thread();
    }
    self().blocked |= start.blocked;
    self().parent = start.parent;
    self().parent_python = start.parent_python;
    // Where the thread is cancelled, nothing else of ours runs: what it waited in had pages opened.
    Result result{};
    pthread_cleanup_push([](void*) { leave_calls(); }, nullptr);
    result = start.routine(start.argument);
    pthread_cleanup_pop(1);
    return result;
}

// `create(routine, argument)` is the C library's.
template <typename Result, typename Create>
int start(Result (*routine)(void*), void* argument, Create create) {
    auto* start = new (std::nothrow) Start<Result>{routine, argument, self().id, nullptr, self().blocked};
    if (start == nullptr) {
        return create(routine, argument);
    }
    if (Watcher* watch = watcher()) {
        start->parent_python = watch->stacks.python.state();
    }
    const int result = create(started<Result>, static_cast<void*>(start));
    if (result != 0) {
        delete start;
    }
    return result;
}

}  // namespace

// The linker knows where the section begins and ends.
[[gnu::visibility("hidden")]] extern AnyNext first_next[] __asm__("__start_hostrace_next");
[[gnu::visibility("hidden")]] extern AnyNext end_of_next[] __asm__("__stop_hostrace_next");

bool in_front() {
    const auto comes_to_us = [](const char* name, auto* function, auto... arguments) {
        came_to_us = false;
        reinterpret_cast<decltype(function)>(dlsym(RTLD_DEFAULT, name))(arguments...);
        return came_to_us;
    };
    struct sigaction action{};
    return comes_to_us("read", ::read, -1, nullptr, std::size_t{0}) &&
           comes_to_us("poll", ::poll, nullptr, nfds_t{0}, 0) &&
           comes_to_us("sigaction", ::sigaction, SIGUSR1, nullptr, &action) &&
           comes_to_us("pthread_sigmask", ::pthread_sigmask, SIG_BLOCK, nullptr, nullptr);
}

}  // namespace hostrace

using namespace hostrace;

HOSTRACE_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
    return masked(next_pthread_sigmask, how, set, before);
}

HOSTRACE_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* before) noexcept {
    return masked(next_sigprocmask, how, set, before);
}

HOSTRACE_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                                   void* argument) noexcept {
    leave_stack_alone(attributes);
    return start(routine, argument,
                 [&](auto* run, void* with) { return next_pthread_create(thread, attributes, run, with); });
}

HOSTRACE_EXPORT int thrd_create(thrd_t* thread, thrd_start_t routine, void* argument) {
    return start(routine, argument, [&](auto* run, void* with) { return next_thrd_create(thread, run, with); });
}

namespace {

[[gnu::constructor]] void free_the_first_thread() { static_cast<void>(self()); }

[[gnu::constructor]] void find_all_next() {
    const auto place = [](const AnyNext* next) { return reinterpret_cast<std::uintptr_t>(next); };
    const std::size_t count = (place(end_of_next) - place(first_next)) / sizeof(AnyNext);
    for (AnyNext& next : std::span(first_next, count)) {
        next.find();
    }
    dlerror();  // what is missing is no error of the program's
}

}  // namespace
