// Functions of the C library by which the kernel reads or writes memory for the program. They are called through us where
// the library is preloaded: a call into a protected page would fail with EFAULT, so it is a touch, settled first.
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>

#include <array>

#include "hostrace/interpose.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

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

}  // namespace
}  // namespace hostrace

using namespace hostrace;

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
