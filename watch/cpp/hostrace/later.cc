#include "hostrace/later.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <atomic>

#include "hostrace/errno_kept.h"
#include "hostrace/libc.h"
#include "hostrace/maps.h"
#include "hostrace/owned_lock.h"
#include "hostrace/use.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

// Of a ring: a thread of the kernel looks into it (IORING_SETUP_SQPOLL), or it lies in memory of the program
// (IORING_SETUP_NO_MMAP).
constexpr std::uint32_t kWithoutCalls = 1U << 1U;
constexpr std::uint32_t kWithoutMap = 1U << 14U;
constexpr long kRingOfBuffers = 22;  // IORING_REGISTER_PBUF_RING: older headers have no name for it

void stop() {
    const ErrnoKept of_the_program;
    stop_protecting(
        "the program lets others read and write pinned memory at any time (io_uring, aio, a file's buffer, a list of "
        "robust locks): no page is protected, and only changes of what copies read are seen");
}

// What the program has put into its rings. Each place is looked at, whether it was handed over already or not.
class Rings {
  public:
    void made(int ring) { known(ring).store(false, std::memory_order_relaxed); }

    bool name_pinned_memory(int ring, const Ranges& ranges) {
        const ErrnoKept of_the_program;
        if (!lock_.lock_unless_mine()) {
            return true;
        }
        if (!known(ring).exchange(true, std::memory_order_relaxed)) {
            find();
        }
        bool any = places_end_ > places_.size();
        const int memory = libc::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
        for (std::size_t at = 0; at < std::min(places_end_, places_.size()) && !any; ++at) {
            any = memory < 0 || named_in(memory, places_[at], ranges);
        }
        libc::close(memory);
        lock_.unlock();
        return any;
    }

  private:
    static bool named_in(int memory, Span place, const Ranges& ranges) {
        std::array<io_uring_sqe, 16> asked{};
        for (std::uintptr_t at = place.begin; at < place.end; at += sizeof asked) {
            const std::size_t bytes = std::min(sizeof asked, place.end - at);
            if (libc::pread(memory, asked.data(), bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes)) {
                return false;  // the ring is gone
            }
            for (std::size_t one = 0; one < bytes / sizeof asked[0]; ++one) {
                if (names(asked[one], ranges)) {
                    return true;
                }
            }
        }
        return false;
    }

    static bool names(const io_uring_sqe& asked, const Ranges& ranges) {
        switch (asked.opcode) {
            case IORING_OP_NOP:
                return false;
            case IORING_OP_READV:
            case IORING_OP_WRITEV:
            case IORING_OP_SENDMSG:
            case IORING_OP_RECVMSG:
                return true;                 // they name a list, which may be gone
            case IORING_OP_PROVIDE_BUFFERS:  // as many as the number of its file
                return ranges.near(
                    asked.addr,
                    std::max<std::size_t>(std::size_t{asked.len} * static_cast<std::size_t>(std::max(asked.fd, 1)), 1));
            default:
                return ranges.near(asked.addr, std::max<std::size_t>(asked.len, 1)) || ranges.near(asked.addr2);
        }
    }

    void find() {
        places_end_ = 0;
        const bool known = each_mapped([this](const Mapped& part) {
            const std::uint64_t offset = std::strtoull(part.rights + std::strlen("rw-s "), nullptr, 16);
            if (std::strstr(part.rights, "[io_uring]") == nullptr || offset != IORING_OFF_SQES) {
                return;
            }
            if (places_end_ < places_.size()) {
                places_[places_end_] = part;
            }
            ++places_end_;
        });
        places_end_ = known ? places_end_ : places_.size() + 1;
    }

    std::atomic<bool>& known(int ring) { return known_[static_cast<std::size_t>(ring) % known_.size()]; }

    OwnedLock lock_;
    std::array<std::atomic<bool>, 1024> known_{};  // by the ring's file
    std::array<Span, 64> places_{};
    std::size_t places_end_ = 0;
};

constinit Rings rings;

bool names_list(const iocb& asked) {
    return asked.aio_lio_opcode == IOCB_CMD_PREADV || asked.aio_lio_opcode == IOCB_CMD_PWRITEV;
}

}  // namespace

void touched_later(const void* memory, std::size_t bytes) {
    const Watcher* watch = watcher();
    if (watch != nullptr && bytes != 0 && watch->ranges.near(reinterpret_cast<std::uintptr_t>(memory), bytes)) {
        stop();
    }
}

void timer_comes(const sigevent* event) {
    if (event != nullptr && event->sigev_notify == SIGEV_THREAD) {
        stop_protecting(
            "the program has a timer whose threads block every signal (SIGEV_THREAD): "
            "no page is protected, and only changes of what copies read are seen");
    }
}

void before_call(long number, const std::array<long, 6>& arguments) {
    if (number == SYS_io_uring_register && arguments[1] == kRingOfBuffers) {
        stop();  // the kernel chooses among buffers that no request names
    }
    const Watcher* watch = watcher();
    if (watch == nullptr || why_nothing_is_protected() != nullptr) {
        return;
    }
    if (number == SYS_set_robust_list) {
        stop();  // the program puts locks into it, and takes them out, by no call at all
    }
    if (number == SYS_set_tid_address) {
        touched_later(reinterpret_cast<const void*>(arguments[0]), sizeof(int));
    }
    if (number == SYS_io_submit) {
        auto* const* asked = reinterpret_cast<iocb**>(arguments[2]);
        for (long at = 0; at < arguments[1]; ++at) {
            if (names_list(*asked[at])) {
                stop();
            }
            touched_later(reinterpret_cast<const void*>(asked[at]->aio_buf), asked[at]->aio_nbytes);
        }
    }
    if (number == SYS_io_uring_enter && arguments[1] != 0 &&
        rings.name_pinned_memory(static_cast<int>(arguments[0]), watch->ranges)) {
        stop();
    }
}

void after_call(long number, const std::array<long, 6>& arguments, long result) {
    if (number != SYS_io_uring_setup || result < 0) {
        return;
    }
    rings.made(static_cast<int>(result));
    if ((reinterpret_cast<const io_uring_params*>(arguments[1])->flags & (kWithoutCalls | kWithoutMap)) != 0) {
        stop();
    }
}

}  // namespace hostrace
