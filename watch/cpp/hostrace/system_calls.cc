// Functions of the C library by which the kernel reads or writes memory for the program. They are called through us where
// the library is preloaded, because a call into a protected page would fail with EFAULT. Those that take the program's
// data are touches, settled first. Whatever else fails with EFAULT is called again with every page open: the program sees
// the error only where it would without us.
#include <aio.h>
#include <mqueue.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include <cstring>

#include "hostrace/interpose.h"
#include "hostrace/later.h"
#include "hostrace/left_behind.h"
#include "hostrace/masked.h"
#include "hostrace/settled.h"

using namespace hostrace;

namespace {

// The arguments of a program that stand behind `first` up to a null, as an array for `run`, and what follows them.
template <typename Run>
int with_array(const char* first, va_list& rest, Run run) {
    va_list counted;
    va_copy(counted, rest);
    std::size_t count = 0;
    for (const char* each = first; each != nullptr; each = va_arg(counted, const char*)) {
        ++count;
    }
    va_end(counted);
    // A child of vfork has its parent's heap, and never gives anything back.
    auto** const array = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*)));
    const char* each = first;
    for (std::size_t at = 0; at < count; ++at, each = va_arg(rest, const char*)) {
        array[at] = const_cast<char*>(each);
    }
    array[count] = nullptr;
    const int result = run(array);
    va_end(rest);
    return result;
}

msghdr of(const msghdr* message) { return message == nullptr ? msghdr{} : *message; }

}  // namespace

// The C library's functions by which the kernel touches memory: parameters, arguments, what is touched and how. Ours have
// names of their own in C++: the C library's headers declare each in a way of its own, and some not at all.
// `others` are addresses besides them.
#define HOSTRACE_LIST(...) __VA_ARGS__
#define HOSTRACE_SETTLED(result, name, parameters, arguments, access, ...) \
    HOSTRACE_SETTLED_BESIDE((), result, name, parameters, arguments, access, __VA_ARGS__)
#define HOSTRACE_SETTLED_BESIDE(others, result, name, parameters, arguments, access, ...)                            \
    HOSTRACE_EXPORT result settled_##name parameters __asm__(#name);                                                 \
    result settled_##name parameters {                                                                               \
        HOSTRACE_FOUND_AT_START static Next<result parameters> next(#name);                                          \
        [[maybe_unused]] const Opened opened{HOSTRACE_LIST others};                                                  \
        const Settled settled(#name, Access::access, __VA_ARGS__);                                                   \
        return again([&] { return next arguments; }, [](auto given) { return by_errno(static_cast<long>(given)); }); \
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
HOSTRACE_SETTLED_BESIDE((address, length), ssize_t, recvfrom,
                        (int socket, void* to, size_t bytes, int flags, sockaddr* address, socklen_t* length),
                        (socket, to, bytes, flags, address, length), write, to, bytes)
HOSTRACE_SETTLED_BESIDE((message, of(message).msg_name, of(message).msg_control), ssize_t, recvmsg,
                        (int socket, msghdr* message, int flags), (socket, message, flags), write,
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
HOSTRACE_SETTLED_BESIDE((message, of(message).msg_name, of(message).msg_control), ssize_t, sendmsg,
                        (int socket, const msghdr* message, int flags), (socket, message, flags), read,
                        message == nullptr ? nullptr : message->msg_iov,
                        message == nullptr ? 0 : static_cast<ssize_t>(message->msg_iovlen))
HOSTRACE_SETTLED(size_t, fwrite, (const void* from, size_t size, size_t count, FILE* file), (from, size, count, file),
                 read, from, (size * count))
HOSTRACE_SETTLED(size_t, fread_unlocked, (void* to, size_t size, size_t count, FILE* file), (to, size, count, file),
                 write, to, (size * count))
HOSTRACE_SETTLED(size_t, fwrite_unlocked, (const void* from, size_t size, size_t count, FILE* file),
                 (from, size, count, file), read, from, (size * count))
HOSTRACE_SETTLED(int, fputs, (const char* from, FILE* file), (from, file), read, from, std::strlen(from))
HOSTRACE_SETTLED(ssize_t, pwritev, (int file, const iovec* parts, int count, off_t at), (file, parts, count, at), read,
                 parts, count)
HOSTRACE_SETTLED(ssize_t, pwritev64, (int file, const iovec* parts, int count, off64_t at), (file, parts, count, at),
                 read, parts, count)
HOSTRACE_SETTLED(ssize_t, pwritev2, (int file, const iovec* parts, int count, off_t at, int flags),
                 (file, parts, count, at, flags), read, parts, count)
HOSTRACE_SETTLED(ssize_t, pwritev64v2, (int file, const iovec* parts, int count, off64_t at, int flags),
                 (file, parts, count, at, flags), read, parts, count)
HOSTRACE_SETTLED_BESIDE((messages, time), int, recvmmsg,
                        (int socket, mmsghdr* messages, unsigned count, int flags, timespec* time),
                        (socket, messages, count, flags, time), write, messages, count)
HOSTRACE_SETTLED_BESIDE((messages), int, sendmmsg, (int socket, mmsghdr* messages, unsigned count, int flags),
                        (socket, messages, count, flags), read, messages, count)
HOSTRACE_SETTLED_BESIDE((parts), ssize_t, vmsplice, (int pipe, const iovec* parts, size_t count, unsigned flags),
                        (pipe, parts, count, flags), read, parts, static_cast<ssize_t>(count))
HOSTRACE_SETTLED_BESIDE((parts, others), ssize_t, process_vm_readv,
                        (pid_t process, const iovec* parts, unsigned long count, const iovec* others,
                         unsigned long others_count, unsigned long flags),
                        (process, parts, count, others, others_count, flags), write, parts, static_cast<ssize_t>(count))
HOSTRACE_SETTLED_BESIDE((parts, others), ssize_t, process_vm_writev,
                        (pid_t process, const iovec* parts, unsigned long count, const iovec* others,
                         unsigned long others_count, unsigned long flags),
                        (process, parts, count, others, others_count, flags), read, parts, static_cast<ssize_t>(count))
HOSTRACE_SETTLED(int, msgsnd, (int queue, const void* from, size_t bytes, int flags), (queue, from, bytes, flags), read,
                 from, sizeof(long) + bytes)
HOSTRACE_SETTLED(ssize_t, msgrcv, (int queue, void* to, size_t bytes, long type, int flags),
                 (queue, to, bytes, type, flags), write, to, sizeof(long) + bytes)
HOSTRACE_SETTLED(int, mq_send, (mqd_t queue, const char* from, size_t bytes, unsigned rank), (queue, from, bytes, rank),
                 read, from, bytes)
HOSTRACE_SETTLED_BESIDE((time), int, mq_timedsend,
                        (mqd_t queue, const char* from, size_t bytes, unsigned rank, const timespec* time),
                        (queue, from, bytes, rank, time), read, from, bytes)
HOSTRACE_SETTLED_BESIDE((rank), ssize_t, mq_receive, (mqd_t queue, char* to, size_t bytes, unsigned* rank),
                        (queue, to, bytes, rank), write, to, bytes)
HOSTRACE_SETTLED_BESIDE((rank, time), ssize_t, mq_timedreceive,
                        (mqd_t queue, char* to, size_t bytes, unsigned* rank, const timespec* time),
                        (queue, to, bytes, rank, time), write, to, bytes)
// What a fortified program calls instead.
HOSTRACE_SETTLED(ssize_t, __read_chk, (int file, void* to, size_t bytes, size_t room), (file, to, bytes, room), write,
                 to, bytes)
HOSTRACE_SETTLED(ssize_t, __pread_chk, (int file, void* to, size_t bytes, off_t at, size_t room),
                 (file, to, bytes, at, room), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, __pread64_chk, (int file, void* to, size_t bytes, off64_t at, size_t room),
                 (file, to, bytes, at, room), write, to, bytes)
HOSTRACE_SETTLED(ssize_t, __recv_chk, (int socket, void* to, size_t bytes, size_t room, int flags),
                 (socket, to, bytes, room, flags), write, to, bytes)
HOSTRACE_SETTLED_BESIDE((address, length), ssize_t, __recvfrom_chk,
                        (int socket, void* to, size_t bytes, size_t room, int flags, sockaddr* address,
                         socklen_t* length),
                        (socket, to, bytes, room, flags, address, length), write, to, bytes)
HOSTRACE_SETTLED(size_t, __fread_chk, (void* to, size_t room, size_t size, size_t count, FILE* file),
                 (to, room, size, count, file), write, to, (size * count))
HOSTRACE_SETTLED(size_t, __fread_unlocked_chk, (void* to, size_t room, size_t size, size_t count, FILE* file),
                 (to, room, size, count, file), write, to, (size * count))

// On x86-64 and aarch64 each of these takes its arguments in the same places, whatever and how many they are.
#define HOSTRACE_AGAIN(name, takes, refused) HOSTRACE_AGAIN_BEHIND(, name, takes, refused)
#define HOSTRACE_AGAIN_BEHIND(before, name, takes, refused)                                                   \
    HOSTRACE_EXPORT long again_##name(long a, long b, long c, long d, long e, long f, long g) __asm__(#name); \
    long again_##name(long a, long b, long c, long d, long e, long f, long g) {                               \
        HOSTRACE_FOUND_AT_START static Next<long(long, long, long, long, long, long, long)> next(#name);      \
        const Opened opened(Taken<7>{takes, {a, b, c, d, e, f, g}});                                          \
        before;                                                                                               \
        return again([&] { return next(a, b, c, d, e, f, g); }, refused);                                     \
    }
#define AGAIN(name, takes) HOSTRACE_AGAIN(name, takes, by_errno)
#define NULL_AGAIN(name, takes) HOSTRACE_AGAIN(name, takes, by_null)
#define NUMBER_AGAIN(name, takes) HOSTRACE_AGAIN(name, takes, by_number)
// These start the program, with the environment that is given, or with the process's own.
#define STARTS(name, takes, refused, program, environment)                                                             \
    HOSTRACE_AGAIN_BEHIND(                                                                                             \
        [[maybe_unused]] const long a_shell = reinterpret_cast<long>("/bin/sh");                                       \
        [[maybe_unused]] const long of_process = reinterpret_cast<long>(environ);                                      \
        say_if_left_behind(reinterpret_cast<const char*>(program), reinterpret_cast<const char* const*>(environment)), \
        name, takes, refused)
// As its event may say.
#define STARTS_THREADS(name, takes, refused, event) \
    HOSTRACE_AGAIN_BEHIND(timer_comes(reinterpret_cast<const sigevent*>(event)), name, takes, refused)
#include "hostrace/again.def"

// The C library makes calls of its own for these.
HOSTRACE_EXPORT int listed_execl(const char* path, const char* first, ...) __asm__("execl");
int listed_execl(const char* path, const char* first, ...) {
    va_list rest;
    va_start(rest, first);
    return with_array(first, rest, [&](char** array) { return execv(path, array); });
}
HOSTRACE_EXPORT int listed_execlp(const char* file, const char* first, ...) __asm__("execlp");
int listed_execlp(const char* file, const char* first, ...) {
    va_list rest;
    va_start(rest, first);
    return with_array(first, rest, [&](char** array) { return execvp(file, array); });
}
HOSTRACE_EXPORT int listed_execle(const char* path, const char* first, ...) __asm__("execle");
int listed_execle(const char* path, const char* first, ...) {
    va_list rest;
    va_start(rest, first);
    return with_array(first, rest, [&](char** array) { return execve(path, array, va_arg(rest, char**)); });
}

// The C library makes these in threads of its own. Requests have one form whatever the width of files' offsets.
#define HOSTRACE_LATER(name)                                                       \
    HOSTRACE_EXPORT int later_##name(aiocb* asked) __asm__(#name);                 \
    int later_##name(aiocb* asked) {                                               \
        HOSTRACE_FOUND_AT_START static Next<int(aiocb*)> next(#name);              \
        touched_later(const_cast<const void*>(asked->aio_buf), asked->aio_nbytes); \
        return next(asked);                                                        \
    }
HOSTRACE_LATER(aio_read)
HOSTRACE_LATER(aio_read64)
HOSTRACE_LATER(aio_write)
HOSTRACE_LATER(aio_write64)
#define HOSTRACE_LIST_LATER(name)                                                                               \
    HOSTRACE_EXPORT int later_##name(int mode, aiocb* const* asked, int count, sigevent* event) __asm__(#name); \
    int later_##name(int mode, aiocb* const* asked, int count, sigevent* event) {                               \
        HOSTRACE_FOUND_AT_START static Next<int(int, aiocb* const*, int, sigevent*)> next(#name);               \
        for (int at = 0; at < count; ++at) {                                                                    \
            if (asked[at] != nullptr) {                                                                         \
                touched_later(const_cast<const void*>(asked[at]->aio_buf), asked[at]->aio_nbytes);              \
            }                                                                                                   \
        }                                                                                                       \
        return next(mode, asked, count, event);                                                                 \
    }
HOSTRACE_LIST_LATER(lio_listio)
HOSTRACE_LIST_LATER(lio_listio64)

// The C library reads and writes files past us, from and into what it is given here.
HOSTRACE_EXPORT int buffered_setvbuf(FILE* file, char* buffer, int mode, size_t bytes) __asm__("setvbuf");
int buffered_setvbuf(FILE* file, char* buffer, int mode, size_t bytes) {
    HOSTRACE_FOUND_AT_START static Next<int(FILE*, char*, int, size_t)> next("setvbuf");
    touched_later(buffer, bytes);
    return next(file, buffer, mode, bytes);
}
HOSTRACE_EXPORT void buffered_setbuffer(FILE* file, char* buffer, size_t bytes) __asm__("setbuffer");
void buffered_setbuffer(FILE* file, char* buffer, size_t bytes) {
    HOSTRACE_FOUND_AT_START static Next<void(FILE*, char*, size_t)> next("setbuffer");
    touched_later(buffer, bytes);
    next(file, buffer, bytes);
}
HOSTRACE_EXPORT void buffered_setbuf(FILE* file, char* buffer) __asm__("setbuf");
void buffered_setbuf(FILE* file, char* buffer) {
    HOSTRACE_FOUND_AT_START static Next<void(FILE*, char*)> next("setbuf");
    touched_later(buffer, BUFSIZ);
    next(file, buffer);
}

// It ends the program where the kernel refuses.
HOSTRACE_EXPORT void settled_arc4random_buf(void* to, size_t bytes) __asm__("arc4random_buf");
void settled_arc4random_buf(void* to, size_t bytes) {
    HOSTRACE_FOUND_AT_START static Next<void(void*, size_t)> next("arc4random_buf");
    const Settled settled("arc4random_buf", Access::write, to, bytes);
    if (next.find() == reinterpret_cast<void*>(missing)) {
        for (std::size_t at = 0; at < bytes;) {
            const ssize_t got = getrandom(static_cast<char*>(to) + at, bytes - at, 0);
            at += got > 0 ? static_cast<std::size_t>(got) : 0;
        }
        return;
    }
    next(to, bytes);
}

// The same for those that set a mask while they wait, with our signals out of it (interpose.cc).
#define HOSTRACE_MASKED(name, parameters, arguments, ...)                \
    HOSTRACE_EXPORT int masked_##name parameters __asm__(#name);         \
    int masked_##name parameters {                                       \
        HOSTRACE_FOUND_AT_START static Next<int parameters> next(#name); \
        const Masked masked(mask);                                       \
        const Opened opened(__VA_ARGS__);                                \
        return again([&] { return next arguments; }, by_errno);          \
    }
HOSTRACE_MASKED(ppoll, (pollfd * files, nfds_t count, const timespec* time, const sigset_t* mask),
                (files, count, time, masked.given), files, time)
HOSTRACE_MASKED(__ppoll_chk, (pollfd * files, nfds_t count, const timespec* time, const sigset_t* mask, size_t room),
                (files, count, time, masked.given, room), files, time)
HOSTRACE_MASKED(pselect,
                (int end, fd_set* reads, fd_set* writes, fd_set* others, const timespec* time, const sigset_t* mask),
                (end, reads, writes, others, time, masked.given), reads, writes, others, time)
HOSTRACE_MASKED(epoll_pwait, (int set, epoll_event* events, int count, int ms, const sigset_t* mask),
                (set, events, count, ms, masked.given), events)
HOSTRACE_MASKED(epoll_pwait2, (int set, epoll_event* events, int count, const timespec* time, const sigset_t* mask),
                (set, events, count, time, masked.given), events, time)
