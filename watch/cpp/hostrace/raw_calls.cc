#include "hostrace/raw_calls.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <linux/audit.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "hostrace/errno_kept.h"
#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/later.h"
#include "hostrace/machine.h"
#include "hostrace/memory_calls.h"
#include "hostrace/sandbox.h"
#include "hostrace/settled.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

using machine::kDispatch;
constexpr int kByDispatch = 2;  // SYS_USER_DISPATCH, why SIGSYS came: older headers have no name for it

// The code of the C library, whose own calls go through.
Span libc_code{0, 0};
bool asked = false;
// What the kernel looks at for each call: one word for all threads, so that all can be given up at once.
constexpr char kHandsOver = 1, kLetsThrough = 0;
std::atomic<char> hands_over{kHandsOver};

constexpr std::size_t kArguments = 6;
struct Call {
    long number;
    std::array<long, kArguments> arguments;
};

long to_kernel(const Call& call) {
    const auto& [a, b, c, d, e, f] = call.arguments;
    return to_linux(call.number, a, b, c, d, e, f);
}

// Calls that may wait for long, and how many arguments they take: what stands behind these hides no race meanwhile. Most
// others return in a moment.
struct Takes {
    long number;
    std::size_t arguments;
};
constexpr std::array kTakes{
#ifdef SYS_poll  // aarch64 has the newer ones alone
    Takes{SYS_poll, 3},          Takes{SYS_select, 5},    Takes{SYS_epoll_wait, 4},
#endif
    Takes{SYS_ppoll, 5},         Takes{SYS_nanosleep, 2}, Takes{SYS_clock_nanosleep, 4},
    Takes{SYS_accept, 3},        Takes{SYS_accept4, 4},   Takes{SYS_connect, 3},
    Takes{SYS_wait4, 4},         Takes{SYS_waitid, 5},    Takes{SYS_rt_sigtimedwait, 4},
    Takes{SYS_rt_sigsuspend, 2}, Takes{SYS_semop, 3},     Takes{SYS_semtimedop, 4},
    Takes{SYS_openat, 4},        Takes{SYS_ioctl, 3},     Takes{SYS_fcntl, 3},
};

std::size_t taken_by(const Call& call) {
    constexpr long kWait = 0, kOperation = 0x7f;  // of a futex, without its flags
    if (call.number == SYS_futex && (call.arguments[1] & kOperation) == kWait) {
        return 4;
    }
    const auto* const known =
        std::find_if(kTakes.begin(), kTakes.end(), [&](const Takes& each) { return each.number == call.number; });
    return known == kTakes.end() ? kArguments : known->arguments;
}

long to_kernel_again(const Call& call) {
    const Opened opened(Taken<kArguments>{taken_by(call), call.arguments});
    return again([&] { return to_kernel(call); }, by_errno);
}

// What a call touches of the program's memory, by its arguments.
struct Touches {
    enum class Shape : std::uint8_t { bytes, parts, message, messages };
    long number;
    const char* name;
    Access access;
    Shape shape;
    std::size_t memory = 1;           // which argument; its size or count is the next one
    std::size_t beside = kArguments;  // the first of those behind it that are addresses, too; the rest are numbers
};

constexpr ssize_t kPartsMax = 1024;  // the kernel refuses more
using enum Touches::Shape;
constexpr std::array kTouches{
    Touches{SYS_read, "read", Access::write, bytes},
    Touches{SYS_pread64, "pread64", Access::write, bytes},
    Touches{SYS_readv, "readv", Access::write, parts},
    Touches{SYS_preadv, "preadv", Access::write, parts},
    Touches{SYS_preadv2, "preadv2", Access::write, parts},
    Touches{SYS_recvfrom, "recvfrom", Access::write, bytes, 1, 4},
    Touches{SYS_recvmsg, "recvmsg", Access::write, message},
    Touches{SYS_getrandom, "getrandom", Access::write, bytes, 0},
    Touches{SYS_write, "write", Access::read, bytes},
    Touches{SYS_pwrite64, "pwrite64", Access::read, bytes},
    Touches{SYS_writev, "writev", Access::read, parts},
    Touches{SYS_pwritev, "pwritev", Access::read, parts},
    Touches{SYS_pwritev2, "pwritev2", Access::read, parts},
    Touches{SYS_sendto, "sendto", Access::read, bytes, 1, 4},
    Touches{SYS_sendmsg, "sendmsg", Access::read, message},
    Touches{SYS_recvmmsg, "recvmmsg", Access::write, messages, 1, 4},
    Touches{SYS_sendmmsg, "sendmmsg", Access::read, messages},
    Touches{SYS_vmsplice, "vmsplice", Access::read, parts},
    Touches{SYS_process_vm_readv, "process_vm_readv", Access::write, parts},
    Touches{SYS_process_vm_writev, "process_vm_writev", Access::read, parts},
    Touches{SYS_msgsnd, "msgsnd", Access::read, bytes},
    Touches{SYS_msgrcv, "msgrcv", Access::write, bytes},
    Touches{SYS_mq_timedsend, "mq_timedsend", Access::read, bytes, 1, 4},
    Touches{SYS_mq_timedreceive, "mq_timedreceive", Access::write, bytes, 1, 3},
};

// Nothing else is opened: a size, a place in a file, or what a register held that the call does not take, may look like an
// address in pinned memory, and a call may wait for long.
long settled(const Touches& touches, const Call& call) {
    std::array<Span, 4> beside{};
    const auto from = [](const void* at, std::size_t size) {
        const auto begin = reinterpret_cast<std::uintptr_t>(at);
        return Span{begin, begin + size};
    };
    auto* const memory = reinterpret_cast<void*>(call.arguments[touches.memory]);
    const long size = call.arguments[touches.memory + 1];
    if (touches.shape == messages) {
        const auto* const all = static_cast<const mmsghdr*>(memory);
        const Opened opened(all, touches.beside == kArguments ? 0 : call.arguments[touches.beside]);
        const Settled open(touches.name, touches.access, all, static_cast<unsigned>(size));
        return again([&] { return to_kernel(call); }, by_errno);
    }
    const iovec whole{memory, static_cast<std::size_t>(size)};
    const iovec* its = &whole;
    ssize_t count = 1;
    if (touches.shape == parts) {
        its = static_cast<const iovec*>(memory);
        count = size;
        beside[0] = from(its, static_cast<std::size_t>(std::clamp(count, ssize_t{0}, kPartsMax)) * sizeof *its);
    } else if (touches.shape == message) {
        const auto* all = static_cast<const msghdr*>(memory);
        its = all == nullptr ? nullptr : all->msg_iov;
        count = all == nullptr ? 0 : static_cast<ssize_t>(all->msg_iovlen);
        if (all != nullptr) {
            const auto parts_of_it = static_cast<std::size_t>(std::min<std::size_t>(all->msg_iovlen, kPartsMax));
            beside = {from(all, sizeof *all), from(all->msg_name, all->msg_namelen),
                      from(all->msg_control, all->msg_controllen), from(its, parts_of_it * sizeof *its)};
        }
    } else if (touches.beside != kArguments) {
        beside[0] = Opened::from(call.arguments[touches.beside]);
        beside[1] = Opened::from(call.arguments[touches.beside + 1]);
    }
    const Opened opened(beside[0], beside[1], beside[2], beside[3]);
    const Settled open(touches.name, touches.access, its, count);
    return again([&] { return to_kernel(call); }, by_errno);
}

// The kernel is shown the mask that the program believes in, changes it and tells it. Then ours come out again.
long change_mask(const Call& call) {
    Thread& thread = self();
    std::uint64_t mask = thread.blocked;
    to_linux(SYS_rt_sigprocmask, SIG_BLOCK, &mask, nullptr, sizeof mask);
    const long result = to_kernel_again(call);
    const ErrnoKept of_the_call;
    to_linux(SYS_rt_sigprocmask, SIG_UNBLOCK, &kOurSignals, &mask, sizeof mask);
    thread.blocked = mask & kOurSignals;
    send_what_waited();
    return result;
}

// The C library refuses signals that it has for itself.
long change_handler(const Call& call) {
    const int signal = static_cast<int>(call.arguments[0]);
    const auto* wanted = reinterpret_cast<const KernelAction*>(call.arguments[1]);
    auto* before = reinterpret_cast<KernelAction*>(call.arguments[2]);
    struct sigaction given{};
    struct sigaction was{};
    if (call.arguments[3] != sizeof wanted->mask || libc_sigaction(signal, nullptr, &was) != 0) {
        return to_kernel_again(call);
    }
    if (wanted != nullptr) {
        given.sa_sigaction = reinterpret_cast<decltype(given.sa_sigaction)>(wanted->handler);
        given.sa_flags = static_cast<int>(wanted->flags);
        std::memcpy(&given.sa_mask, &wanted->mask, sizeof wanted->mask);
    }
    const int result = sigaction(signal, wanted == nullptr ? nullptr : &given, &was);
    if (result == 0 && before != nullptr) {
        *before = {reinterpret_cast<void*>(was.sa_sigaction), static_cast<unsigned long>(was.sa_flags),
                   reinterpret_cast<void*>(was.sa_restorer), 0};
        std::memcpy(&before->mask, &was.sa_mask, sizeof before->mask);
    }
    return result;
}

// Calls that set a mask while they wait: which argument is its address, or that of its address and size.
struct Waits {
    long number;
    std::size_t mask;
    bool beside_size = false;
};
constexpr std::array kWaits{
    Waits{SYS_rt_sigsuspend, 0},       Waits{SYS_ppoll, 3}, Waits{SYS_epoll_pwait, 4}, Waits{SYS_pselect6, 5, true},
    Waits{SYS_io_pgetevents, 5, true},
};

long wait_without_ours(const Waits& waits, const Call& call) {
    struct {
        const std::uint64_t* mask;
        std::size_t bytes;
    } beside{};
    Call changed = call;
    long& place = changed.arguments[waits.mask];
    if (place == 0) {
        return to_kernel_again(call);
    }
    if (waits.beside_size) {
        std::memcpy(&beside, reinterpret_cast<const void*>(place), sizeof beside);
    } else {
        beside.mask = reinterpret_cast<const std::uint64_t*>(place);
    }
    const std::uint64_t mask = beside.mask == nullptr ? 0 : *beside.mask & ~kOurSignals;
    const auto* const ours = &mask;
    if (beside.mask != nullptr) {
        beside.mask = ours;
    }
    place = waits.beside_size ? reinterpret_cast<long>(&beside) : reinterpret_cast<long>(ours);
    return to_kernel_again(changed);
}

// Calls that go on in the caller's place, or in another, with its registers: no handler can make them.
bool needs_the_callers_place(long number) {
    for (const long one : machine::kCallsWithTheirPlace) {
        if (number == one) {
            return true;
        }
    }
    return false;
}

// What has to do with signals goes by what the program believes; the rest goes to the kernel.
long made_for(const Call& call) {
    if (call.number == SYS_rt_sigprocmask) {
        return change_mask(call);
    }
    if (call.number == SYS_rt_sigaction) {
        return change_handler(call);
    }
    for (const Waits& waits : kWaits) {
        if (waits.number == call.number) {
            return wait_without_ours(waits, call);
        }
    }
    return to_kernel_again(call);
}

long touching(const Call& call) {
    for (const Touches& touches : kTouches) {
        if (touches.number == call.number) {
            return settled(touches, call);
        }
    }
    return made_for(call);
}

bool closed_in(long number, const std::array<long, 6>& arguments) {
    const bool closes = closes_in(number, arguments);
    if (has_its_own_dispatch()) {
        self().tells_raw_calls = false;
    }
    return closes;
}

// Other signals are not blocked meanwhile: a call may wait for long, and one of their handlers may make another call.
void on_raw_call(int signal, siginfo_t* info, void* raw) {
    if (info->si_code != kByDispatch) {
        chain(signal, info, raw);
        return;
    }
    const ErrnoKept of_the_program;
    auto& context = *static_cast<ucontext_t*>(raw);
    const Call call{info->si_syscall, machine::call_arguments(context)};
    if (info->si_arch != AUDIT_ARCH_X86_64 || needs_the_callers_place(call.number) ||
        closed_in(call.number, call.arguments)) {
        // The thread is asked again at its next call of the C library that comes to us.
        to_linux(SYS_prctl, kDispatch, 0, 0, 0, 0);
        self().tells_raw_calls = false;
        machine::make_call_again(context, info->si_syscall);
    } else {
        before_call(call.number, call.arguments);
        const MemoryCall memory(call.number, call.arguments);
        const long result = touching(call);
        if (call.number == SYS_rt_sigprocmask) {  // it holds from there on where the call came from
            to_linux(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &context.uc_sigmask, sizeof(std::uint64_t));
        }
        after_call(call.number, call.arguments, result);
        machine::answer_call(context, result == -1 ? -errno : result);
    }
}

int has_note_of_go(dl_phdr_info* object, std::size_t /*size*/, void* /*data*/) {
    constexpr std::uint32_t kBuildId = 4;
    constexpr std::array<char, 4> kName{"Go"};
    const auto aligned = [](std::uintptr_t bytes) { return (bytes + 3) & ~std::uintptr_t{3}; };
    for (const auto& segment : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
        std::uintptr_t at = object->dlpi_addr + segment.p_vaddr;
        const std::uintptr_t end = at + segment.p_memsz;
        while (segment.p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) <= end) {
            const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
            if (note->n_type == kBuildId && note->n_namesz == kName.size() &&
                std::memcmp(note + 1, kName.data(), kName.size()) == 0) {
                return 1;
            }
            at += sizeof(*note) + aligned(note->n_namesz) + aligned(note->n_descsz);
        }
    }
    return 0;
}

int find_libc_code(dl_phdr_info* object, std::size_t /*size*/, void* /*data*/) {
    const auto inside = reinterpret_cast<std::uintptr_t>(&gnu_get_libc_version);
    for (const auto& segment : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
        const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD && inside >= begin && inside < begin + segment.p_memsz) {
            libc_code = {begin, begin + segment.p_memsz};
            return 1;
        }
    }
    return 0;
}

}  // namespace

bool has_code_of_go() { return dl_iterate_phdr(has_note_of_go, nullptr) != 0; }

void ask_for_raw_calls() {
    if (!machine::kTellsCalls || to_linux(SYS_prctl, kDispatch, 0, 0, 0, 0) != 0 ||
        dl_iterate_phdr(find_libc_code, nullptr) == 0) {
        return;
    }
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    action.sa_sigaction = on_raw_call;
    KernelAction kernels{};
    if (!take_signal(SIGSYS, action) ||
        to_linux(SYS_rt_sigaction, SIGSYS, nullptr, &kernels, sizeof kernels.mask) != 0) {
        return;
    }
    // Else its own call would be handed over, too.
    const auto returns = reinterpret_cast<std::uintptr_t>(kernels.restorer);
    asked = returns >= libc_code.begin && returns < libc_code.end;
}

void let_raw_calls_through() {
    constexpr timespec kOnTheirWay{0, 20'000'000};
    if (!std::exchange(asked, false)) {
        return;
    }
    hands_over.store(kLetsThrough, std::memory_order_seq_cst);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &kOnTheirWay, nullptr);
}

void ask_for_raw_calls_of_this_thread() {
    Thread& thread = self();
    if (asked && !thread.tells_raw_calls) {
        const ErrnoKept of_the_program;
        thread.tells_raw_calls = true;
        to_linux(SYS_prctl, kDispatch, 1, libc_code.begin, libc_code.end - libc_code.begin, &hands_over);
    }
}

}  // namespace hostrace

using namespace hostrace;

// The program's own calls are handed to nobody, as far as it knows.
HOSTRACE_EXPORT int given_prctl(int option, long b, long c, long d, long e) __asm__("prctl");
int given_prctl(int option, long b, long c, long d, long e) {
    HOSTRACE_FOUND_AT_START static Next<int(int, long, long, long, long)> next("prctl");
    closed_in(SYS_prctl, {option, b, c, d, e, 0});
    const Opened opened(b, c, d, e);
    const int result = again([&] { return next(option, b, c, d, e); }, by_errno);
    if (option == kDispatch && b == 0 && result == 0) {
        self().tells_raw_calls = false;
    }
    return result;
}

HOSTRACE_EXPORT long given_syscall(long number, long a, long b, long c, long d, long e, long f) __asm__("syscall");
long given_syscall(long number, long a, long b, long c, long d, long e, long f) {
    const Call call{number, {a, b, c, d, e, f}};
    closed_in(number, call.arguments);
    before_call(number, call.arguments);
    const MemoryCall memory(number, call.arguments);
    const long result = touching(call);
    after_call(number, call.arguments, result);
    return result;
}
