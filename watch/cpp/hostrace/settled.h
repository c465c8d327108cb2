// What keeps a call into the kernel from failing with EFAULT in a page that is protected.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <cerrno>

#include <array>
#include <cstddef>
#include <cstdint>

#include "hostrace/errno_kept.h"
#include "hostrace/guard.h"
#include "hostrace/raw_calls.h"
#include "hostrace/watcher.h"

namespace hostrace {

// Memory that the kernel is about to touch for the program: its pages stay open until the call has returned.
class Settled {
  public:
    Settled(const char* how, Access access, const void* begin, std::size_t bytes) {
        const iovec part{const_cast<void*>(begin), bytes};
        settle(how, access, &part, 1);
    }
    Settled(const char* how, Access access, const iovec* parts, ssize_t count) { settle(how, access, parts, count); }
    Settled(const char* how, Access access, const mmsghdr* messages, unsigned count) {
        for (unsigned at = 0; at < count && messages != nullptr; ++at) {
            settle(how, access, messages[at].msg_hdr.msg_iov, static_cast<ssize_t>(messages[at].msg_hdr.msg_iovlen));
        }
    }
    Settled(const Settled&) = delete;
    Settled& operator=(const Settled&) = delete;
    ~Settled() {
        Watcher* watch = count_ == 0 ? nullptr : watcher();
        const ErrnoKept of_the_call;
        for (std::size_t at = 0; at < count_ && watch != nullptr; ++at) {
            watch->guard.close(openings_[at]);
        }
    }

  private:
    void settle(const char* how, Access access, const iovec* parts, ssize_t count) {
        Watcher* watch = watcher();
        if (watch == nullptr || parts == nullptr) {
            return;
        }
        const ErrnoKept before_the_call;
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

// The arguments of a call. In the places of those that it does not take stands what was there before, which may be an
// address in pinned memory, and nothing of it is touched.
template <std::size_t N>
struct Taken {
    std::size_t count;
    std::array<long, N> arguments;
};

// What a call is given by address, whatever it is, and of which size if that is not told: the pages from there on stay
// open until it returns. A call that fails with EFAULT may have taken something by then: a message, a connection, the end
// of a child.
class Opened {
  public:
    template <typename... Arguments>
    explicit Opened(Arguments... arguments) {
        open_each(std::array<Span, sizeof...(arguments)>{from(arguments)...}, sizeof...(arguments));
    }
    template <std::size_t N>
    explicit Opened(const Taken<N>& taken) {
        open_each(taken.arguments, taken.count);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    static Span from(Span span) { return span; }
    template <typename Argument>
    static Span from(Argument argument) {
        const auto begin = std::uintptr_t(argument);
        return {begin, begin + kBytes};
    }

    ~Opened() {
        Watcher* watch = count_ == 0 ? nullptr : watcher();
        const ErrnoKept of_the_call;
        while (count_ != 0 && watch != nullptr) {
            watch->guard.close(openings_[--count_]);
        }
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{64} << 10U;

    template <typename Given>
    void open_each(const Given& given, std::size_t count) {
        Watcher* watch = watcher();
        for (std::size_t at = 0; at < count && watch != nullptr; ++at) {
            const Span span = from(given[at]);
            if (watch->ranges.near(span.begin)) {
                open(*watch, span);
            }
        }
    }

    void open(Watcher& watch, Span span) {
        const ErrnoKept before_the_call;
        if (watch.guard.locked_by_me()) {
            static_cast<void>(watch.open_past_the_books(span));
        } else if (count_ < openings_.size() && watch.ranges.meet({span.begin, span.begin + 1})) {
            openings_[count_++] = watch.guard.open_for_now(pages_around(span));
        }
    }

    std::array<Opening, 7> openings_{};
    std::size_t count_ = 0;
};

// The call again, with every page open, where `refused` says that it failed with EFAULT.
template <typename Call, typename Refused>
auto again(Call call, Refused refused) {
    if (watcher() != nullptr) {
        ask_for_raw_calls_of_this_thread();  // it may have begun before there was a watcher
    }
    const int errno_before = errno;
    auto result = call();
    Watcher* watch = refused(result) ? watcher() : nullptr;
    if (watch != nullptr && !watch->guard.locked_by_me()) {  // else a handler interrupted us, and these pages are open
        const Opening opening = watch->guard.open_all_for_now();
        errno = errno_before;
        result = call();
        const ErrnoKept of_the_call;
        watch->guard.close(opening);
    }
    return result;
}

// Functions give int or long: -1 is the same in the lower half of both.
inline bool by_errno(long result) { return static_cast<int>(result) == -1 && errno == EFAULT; }
inline bool by_null(long result) { return result == 0 && errno == EFAULT; }
inline bool by_number(long result) { return static_cast<int>(result) == EFAULT; }

}  // namespace hostrace
