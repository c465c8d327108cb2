// Functions of the C library that are called through us where the library is preloaded. Each does what the original
// does, after what keeps the two from harming each other:
// - a call that lets the kernel read or write a protected page would fail with EFAULT: it is a touch, settled first;
// - handlers of SIGSEGV and SIGTRAP are kept for the program, and called for what is not ours;
// - a thread that blocked these signals would be killed by its first touch: they stay unblocked;
// - who started a thread is noted, because workers without Python touch memory on behalf of one that has it.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>

#include "hostrace/faults.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

#define HOSTRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace hostrace {
namespace {

// The next definition of a function, looked up at its first call.
template <typename F>
class Next {
  public:
    constexpr explicit Next(const char* name) : name_(name) {}
    template <typename... Args>
    auto operator()(Args... args) {
        void* found = found_.load(std::memory_order_relaxed);
        if (found == nullptr) {
            found = dlsym(RTLD_NEXT, name_);
            found_.store(found, std::memory_order_relaxed);
        }
        return reinterpret_cast<F*>(found)(args...);
    }

  private:
    const char* name_;
    std::atomic<void*> found_{nullptr};
};

// The attributes of a declaration, such as nothrow, are no part of the type that is taken from it.
#pragma GCC diagnostic ignored "-Wignored-attributes"
#define HOSTRACE_NEXT(function) constinit Next<decltype(::function)> next_##function(#function)

HOSTRACE_NEXT(sigaction);
HOSTRACE_NEXT(pthread_sigmask);
HOSTRACE_NEXT(sigprocmask);
HOSTRACE_NEXT(pthread_create);

// Memory that the kernel is about to touch for the program: its pages stay open until the call has returned.
class Settled {
  public:
    Settled(const char* how, Access access, const void* begin, std::size_t bytes) {
        const iovec part{const_cast<void*>(begin), bytes};
        settle(how, access, &part, 1);
    }
    Settled(const char* how, Access access, const iovec* parts, ssize_t count) { settle(how, access, parts, count); }
    Settled(const Settled&) = delete;
    Settled& operator=(const Settled&) = delete;
    ~Settled() {
        Watcher* watch = count_ == 0 ? nullptr : watcher();
        const int errno_of_the_call = errno;
        for (std::size_t at = 0; at < count_ && watch != nullptr; ++at) {
            watch->guard.close(openings_[at]);
        }
        errno = errno_of_the_call;
    }

  private:
    void settle(const char* how, Access access, const iovec* parts, ssize_t count) {
        Watcher* watch = watcher();
        if (watch == nullptr || parts == nullptr) {
            return;
        }
        for (const iovec* part = parts; part < parts + count; ++part) {
            const auto begin = reinterpret_cast<std::uintptr_t>(part->iov_base);
            const Opening opening = watch->settle(begin, part->iov_len, access, how);
            if (!opening.empty()) {
                keep(*watch, opening);
            }
        }
    }

    // The last place is for all pages: for the parts that find no other.
    void keep(Watcher& watch, const Opening& opening) {
        if (count_ + 1 < openings_.size()) {
            openings_[count_++] = opening;
            return;
        }
        if (count_ < openings_.size()) {
            openings_[count_++] = watch.guard.open_all_for_now();
        }
        watch.guard.close(opening);
    }

    std::array<Opening, 16> openings_{};
    std::size_t count_ = 0;
};

// A thread with these blocked would be killed by its first touch, and a copy may begin at any time: they are open from
// the start, and the program is told what it asked for.
class Masked {
  public:
    explicit Masked(const sigset_t* set) {
        if (set != nullptr) {
            ours_ = *set;
            for (const int signal : {SIGSEGV, SIGTRAP}) {
                bits |= sigismember(&ours_, signal) == 1 ? bit_of(signal) : 0;
                sigdelset(&ours_, signal);
            }
            given = &ours_;
        }
    }
    static void tell(sigset_t* set, std::uint64_t bits) {
        for (const int signal : {SIGSEGV, SIGTRAP}) {
            if (set != nullptr && (bits & bit_of(signal)) != 0) {
                sigaddset(set, signal);
            }
        }
    }

    const sigset_t* given = nullptr;  // what the kernel gets
    std::uint64_t bits = 0;           // what was taken out of it

  private:
    sigset_t ours_{};
};

template <typename F>
int masked(F& next, int how, const sigset_t* set, sigset_t* before) {
    Thread& thread = self();
    const std::uint64_t was = thread.blocked;
    const Masked mask(set);
    const int result = next(how, mask.given, before);
    if (result != 0) {
        return result;
    }
    Masked::tell(before, was);
    if (set != nullptr) {
        thread.blocked = how == SIG_UNBLOCK ? was & ~mask.bits : mask.bits | (how == SIG_BLOCK ? was : 0);
    }
    return result;
}

// What each handler's mask would block besides.
std::array<std::atomic<std::uint64_t>, NSIG> blocked_in_handlers{};

struct Start {
    void* (*routine)(void*);
    void* argument;
    int parent;
    void* parent_python;
    std::uint64_t blocked;
};

void* started(void* raw) {
    auto* given = static_cast<Start*>(raw);
    const Start start = *given;
    delete given;
    self().blocked |= start.blocked;
    self().parent = start.parent;
    self().parent_python = start.parent_python;
    return start.routine(start.argument);
}

}  // namespace

int libc_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    return next_sigaction(signal, action, before);
}

}  // namespace hostrace

using namespace hostrace;

HOSTRACE_EXPORT int sigaction(int signal, const struct sigaction* action, struct sigaction* before) noexcept {
    if (is_ours(signal)) {
        return program_sigaction(signal, action, before);
    }
    if (signal <= 0 || signal >= NSIG) {
        return next_sigaction(signal, action, before);
    }
    struct sigaction ours{};
    std::uint64_t bits = 0;
    if (action != nullptr) {
        const Masked mask(&action->sa_mask);
        ours = *action;
        ours.sa_mask = *mask.given;
        bits = mask.bits;
    }
    std::atomic<std::uint64_t>& blocked = blocked_in_handlers[static_cast<std::size_t>(signal)];
    const std::uint64_t was = blocked.load(std::memory_order_relaxed);
    const int result = next_sigaction(signal, action == nullptr ? nullptr : &ours, before);
    if (result == 0) {
        Masked::tell(before == nullptr ? nullptr : &before->sa_mask, was);
        blocked.store(action == nullptr ? was : bits, std::memory_order_relaxed);
    }
    return result;
}

HOSTRACE_EXPORT sighandler_t signal(int number, sighandler_t handler) noexcept {
    struct sigaction action{};
    struct sigaction before{};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

HOSTRACE_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
    return masked(next_pthread_sigmask, how, set, before);
}

HOSTRACE_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* before) noexcept {
    return masked(next_sigprocmask, how, set, before);
}

HOSTRACE_EXPORT int sigsuspend(const sigset_t* set) {
    static constinit Next<decltype(::sigsuspend)> next("sigsuspend");
    return next(Masked(set).given);
}

HOSTRACE_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                                   void* argument) noexcept {
    auto* start = new (std::nothrow) Start{routine, argument, self().id, nullptr, self().blocked};
    if (start == nullptr) {
        return next_pthread_create(thread, attributes, routine, argument);
    }
    if (Watcher* watch = watcher()) {
        start->parent_python = watch->stacks.python.state();
    }
    const int result = next_pthread_create(thread, attributes, started, static_cast<void*>(start));
    if (result != 0) {
        delete start;
    }
    return result;
}

namespace {

[[gnu::constructor]] void free_the_first_thread() { static_cast<void>(self()); }

}  // namespace

// The C library's functions by which the kernel touches memory: parameters, arguments, what is touched and how.
#define HOSTRACE_SETTLED(result, name, parameters, arguments, access, ...) \
    HOSTRACE_EXPORT result name parameters {                               \
        static constinit Next<decltype(::name)> next(#name);               \
        const Settled settled(#name, Access::access, __VA_ARGS__);         \
        return next arguments;                                             \
    }

HOSTRACE_SETTLED(ssize_t, read, (int file, void* to, size_t bytes), (file, to, bytes), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, pread, (int file, void* to, size_t bytes, off_t at), (file, to, bytes, at), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, pread64, (int file, void* to, size_t bytes, off64_t at), (file, to, bytes, at), write, to,
                 bytes)
HOSTRACE_SETTLED(ssize_t, readv, (int file, const iovec* parts, int count), (file, parts, count), write, parts, count)
HOSTRACE_SETTLED(ssize_t, preadv, (int file, const iovec* parts, int count, off_t at), (file, parts, count, at), write,
                 parts, count)
HOSTRACE_SETTLED(ssize_t, preadv64, (int file, const iovec* parts, int count, off64_t at), (file, parts, count, at),
                 write, parts, count)
HOSTRACE_SETTLED(ssize_t, preadv2, (int file, const iovec* parts, int count, off_t at, int flags),
                 (file, parts, count, at, flags), write, parts, count)
HOSTRACE_SETTLED(ssize_t, preadv64v2, (int file, const iovec* parts, int count, off64_t at, int flags),
                 (file, parts, count, at, flags), write, parts, count)
HOSTRACE_SETTLED(ssize_t, recv, (int socket, void* to, size_t bytes, int flags), (socket, to, bytes, flags), write, to,
                 bytes)
HOSTRACE_SETTLED(ssize_t, recvfrom,
                 (int socket, void* to, size_t bytes, int flags, sockaddr* address, socklen_t* length),
                 (socket, to, bytes, flags, address, length), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, recvmsg, (int socket, msghdr* message, int flags), (socket, message, flags), write,
                 message == nullptr ? nullptr : message->msg_iov,
                 message == nullptr ? 0 : static_cast<ssize_t>(message->msg_iovlen))
HOSTRACE_SETTLED(size_t, fread, (void* to, size_t size, size_t count, FILE* file), (to, size, count, file), write, to,
                 (size * count))
HOSTRACE_SETTLED(ssize_t, getrandom, (void* to, size_t bytes, unsigned flags), (to, bytes, flags), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, write, (int file, const void* from, size_t bytes), (file, from, bytes), read, from, bytes)
HOSTRACE_SETTLED(ssize_t, pwrite, (int file, const void* from, size_t bytes, off_t at), (file, from, bytes, at), read,
                 from, bytes)
HOSTRACE_SETTLED(ssize_t, pwrite64, (int file, const void* from, size_t bytes, off64_t at), (file, from, bytes, at),
                 read, from, bytes)
HOSTRACE_SETTLED(ssize_t, writev, (int file, const iovec* parts, int count), (file, parts, count), read, parts, count)
HOSTRACE_SETTLED(ssize_t, send, (int socket, const void* from, size_t bytes, int flags), (socket, from, bytes, flags),
                 read, from, bytes)
HOSTRACE_SETTLED(ssize_t, sendto,
                 (int socket, const void* from, size_t bytes, int flags, const sockaddr* address, socklen_t length),
                 (socket, from, bytes, flags, address, length), read, from, bytes)
HOSTRACE_SETTLED(ssize_t, sendmsg, (int socket, const msghdr* message, int flags), (socket, message, flags), read,
                 message == nullptr ? nullptr : message->msg_iov,
                 message == nullptr ? 0 : static_cast<ssize_t>(message->msg_iovlen))
HOSTRACE_SETTLED(size_t, fwrite, (const void* from, size_t size, size_t count, FILE* file), (from, size, count, file),
                 read, from, (size * count))
