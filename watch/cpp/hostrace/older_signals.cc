// What the C library had for signals before sigaction and sigprocmask, and what takes signals without a handler, or gives
// handlers a stack. Its own functions call one another past us, so that theirs would take our handlers away, or block what
// has to reach us. Here they are made of those two.
#include <csignal>
#include <cstring>

#include <atomic>

#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/masked.h"
#include "hostrace/memory_calls.h"
#include "hostrace/settled.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

HOSTRACE_NEXT(sigaltstack);
HOSTRACE_NEXT(sigpending);
HOSTRACE_NEXT(sigsuspend);
HOSTRACE_NEXT(sigwait);
HOSTRACE_NEXT(sigwaitinfo);
HOSTRACE_NEXT(sigtimedwait);

std::atomic<std::uint64_t> interrupting{0};  // by siginterrupt: calls that their handlers interrupt do not go on

// Of sigvec: no header declares it any longer, and programs of its time still call it.
struct OldAction {
    sighandler_t handler;
    int mask, flags;
};

bool is_signal(int number) { return number > 0 && number < NSIG; }

sigset_t only(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

// The first 32 signals are the bits of an int.
sigset_t set_of(int bits) {
    sigset_t set;
    sigemptyset(&set);
    std::memcpy(&set, &bits, sizeof bits);
    return set;
}
int bits_of(const sigset_t& set) {
    int bits = 0;
    std::memcpy(&bits, &set, sizeof bits);
    return bits;
}
std::uint64_t word_of(const sigset_t& set) {
    std::uint64_t word = 0;
    std::memcpy(&word, &set, sizeof word);
    return word;
}

sighandler_t handle(int number, sighandler_t handler, int flags, const sigset_t& mask) {
    struct sigaction action{};
    struct sigaction before{};
    action.sa_handler = handler;
    action.sa_mask = mask;
    action.sa_flags = flags;
    if (handler == SIG_ERR || !is_signal(number)) {
        errno = EINVAL;
        return SIG_ERR;
    }
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

sighandler_t handle_as_bsd(int number, sighandler_t handler) {
    const bool interrupts = is_signal(number) && (interrupting.load() & bit_of(number)) != 0;
    return handle(number, handler, interrupts ? 0 : SA_RESTART, is_signal(number) ? only(number) : set_of(0));
}

sighandler_t handle_as_sysv(int number, sighandler_t handler) {
    return handle(number, handler, static_cast<int>(SA_RESETHAND) | SA_NODEFER, set_of(0));
}

int change(int how, int bits) {
    const sigset_t set = set_of(bits);
    sigset_t before;
    return sigprocmask(how, &set, &before) == 0 ? bits_of(before) : -1;
}

int change_one(int how, int number) {
    sigset_t set;
    sigemptyset(&set);
    return sigaddset(&set, number) != 0 ? -1 : sigprocmask(how, &set, nullptr);
}

int suspend(const sigset_t* mask) {
    const Masked masked(mask);
    return again([&] { return next_sigsuspend(masked.given); }, by_errno);
}

int pause_with(int bits) {
    const sigset_t set = set_of(bits);
    return suspend(&set);
}

int pause_without(int number) {
    sigset_t set;
    if (sigprocmask(SIG_BLOCK, nullptr, &set) != 0 || sigdelset(&set, number) != 0) {
        return -1;
    }
    return suspend(&set);
}

}  // namespace
}  // namespace hostrace

using namespace hostrace;

// The kernel starts handlers there, ours among them: it has to find the stack open.
HOSTRACE_EXPORT int open_sigaltstack(const stack_t* stack, stack_t* before) __asm__("sigaltstack");
int open_sigaltstack(const stack_t* stack, stack_t* before) {
    if (stack != nullptr && (stack->ss_flags & SS_DISABLE) == 0) {
        leave_alone(stack->ss_sp, stack->ss_size);
    }
    const Opened opened(stack, before);
    return again([&] { return next_sigaltstack(stack, before); }, by_errno);
}

#define HOSTRACE_HANDLE(name, as)                                                        \
    HOSTRACE_EXPORT sighandler_t handle_##name(int number, sighandler_t) __asm__(#name); \
    sighandler_t handle_##name(int number, sighandler_t handler) { return as(number, handler); }
HOSTRACE_HANDLE(signal, handle_as_bsd)
HOSTRACE_HANDLE(bsd_signal, handle_as_bsd)
HOSTRACE_HANDLE(ssignal, handle_as_bsd)
HOSTRACE_HANDLE(sysv_signal, handle_as_sysv)
HOSTRACE_HANDLE(__sysv_signal, handle_as_sysv)

HOSTRACE_EXPORT sighandler_t sigset(int number, sighandler_t handler) noexcept {
    sigset_t set;
    sigset_t before;
    sigemptyset(&set);
    if (handler == SIG_ERR || sigaddset(&set, number) != 0) {
        errno = EINVAL;
        return SIG_ERR;
    }
    struct sigaction old{};
    if (handler == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &set, &before) != 0 || sigaction(number, nullptr, &old) != 0) {
            return SIG_ERR;
        }
    } else {
        struct sigaction action{};
        action.sa_handler = handler;
        if (sigaction(number, &action, &old) != 0 || sigprocmask(SIG_UNBLOCK, &set, &before) != 0) {
            return SIG_ERR;
        }
    }
    return sigismember(&before, number) == 1 ? SIG_HOLD : old.sa_handler;
}

HOSTRACE_EXPORT int old_sigvec(int number, const OldAction* wanted, OldAction* before) __asm__("sigvec");
int old_sigvec(int number, const OldAction* wanted, OldAction* before) {
    constexpr int kOnStack = 1, kInterrupts = 2, kOnce = 4;
    struct sigaction action{};
    struct sigaction old{};
    if (wanted != nullptr) {
        action.sa_handler = wanted->handler;
        action.sa_mask = set_of(wanted->mask);
        action.sa_flags = ((wanted->flags & kOnStack) != 0 ? SA_ONSTACK : 0) |
                          ((wanted->flags & kInterrupts) != 0 ? 0 : SA_RESTART) |
                          ((wanted->flags & kOnce) != 0 ? static_cast<int>(SA_RESETHAND) : 0);
    }
    if (sigaction(number, wanted == nullptr ? nullptr : &action, &old) != 0) {
        return -1;
    }
    if (before != nullptr) {
        *before = {old.sa_handler, bits_of(old.sa_mask),
                   ((old.sa_flags & SA_ONSTACK) != 0 ? kOnStack : 0) |
                       ((old.sa_flags & SA_RESTART) != 0 ? 0 : kInterrupts) |
                       ((old.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 ? kOnce : 0)};
    }
    return 0;
}

HOSTRACE_EXPORT int sigignore(int number) noexcept {
    struct sigaction action{};
    action.sa_handler = SIG_IGN;
    return sigaction(number, &action, nullptr);
}

HOSTRACE_EXPORT int siginterrupt(int number, int interrupts) noexcept {
    struct sigaction action{};
    if (sigaction(number, nullptr, &action) != 0) {
        return -1;
    }
    if (interrupts != 0) {
        interrupting.fetch_or(bit_of(number));
        action.sa_flags &= ~SA_RESTART;
    } else {
        interrupting.fetch_and(~bit_of(number));
        action.sa_flags |= SA_RESTART;
    }
    return sigaction(number, &action, nullptr);
}

HOSTRACE_EXPORT int sigblock(int bits) noexcept { return change(SIG_BLOCK, bits); }
HOSTRACE_EXPORT int sigsetmask(int bits) noexcept { return change(SIG_SETMASK, bits); }
HOSTRACE_EXPORT int siggetmask() noexcept { return change(SIG_BLOCK, 0); }
HOSTRACE_EXPORT int sighold(int number) noexcept { return change_one(SIG_BLOCK, number); }
HOSTRACE_EXPORT int sigrelse(int number) noexcept { return change_one(SIG_UNBLOCK, number); }

HOSTRACE_EXPORT int masked_sigsuspend(const sigset_t* mask) __asm__("sigsuspend");
int masked_sigsuspend(const sigset_t* mask) { return suspend(mask); }
HOSTRACE_EXPORT int other_sigsuspend(const sigset_t* mask) __asm__("__sigsuspend");
int other_sigsuspend(const sigset_t* mask) { return suspend(mask); }
// One name, and two meanings: headers choose the last for programs that go by X/Open.
HOSTRACE_EXPORT int pause_bsd(int bits) __asm__("sigpause");
int pause_bsd(int bits) { return pause_with(bits); }
HOSTRACE_EXPORT int pause_either(int number_or_bits, int is_number) __asm__("__sigpause");
int pause_either(int number_or_bits, int is_number) {
    return is_number != 0 ? pause_without(number_or_bits) : pause_with(number_or_bits);
}
HOSTRACE_EXPORT int pause_xpg(int number) __asm__("__xpg_sigpause");
int pause_xpg(int number) { return pause_without(number); }

HOSTRACE_EXPORT int told_sigpending(sigset_t* set) __asm__("sigpending");
int told_sigpending(sigset_t* set) {
    const int result = again([&] { return next_sigpending(set); }, by_errno);
    Masked::tell(result == 0 ? set : nullptr, self().waiting);
    return result;
}
HOSTRACE_EXPORT int told_sigwait(const sigset_t* set, int* number) __asm__("sigwait");
int told_sigwait(const sigset_t* set, int* number) {
    if (const int waited = take_what_waits(word_of(*set), nullptr)) {
        *number = waited;
        return 0;
    }
    const Opened opened(set, number);
    return again([&] { return next_sigwait(set, number); }, by_number);
}
HOSTRACE_EXPORT int told_sigwaitinfo(const sigset_t* set, siginfo_t* info) __asm__("sigwaitinfo");
int told_sigwaitinfo(const sigset_t* set, siginfo_t* info) {
    const int waited = take_what_waits(word_of(*set), info);
    const Opened opened(set, info);
    return waited != 0 ? waited : again([&] { return next_sigwaitinfo(set, info); }, by_errno);
}
HOSTRACE_EXPORT int told_sigtimedwait(const sigset_t* set, siginfo_t* info,
                                      const timespec* time) __asm__("sigtimedwait");
int told_sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* time) {
    const int waited = take_what_waits(word_of(*set), info);
    const Opened opened(set, info, time);
    return waited != 0 ? waited : again([&] { return next_sigtimedwait(set, info, time); }, by_errno);
}
