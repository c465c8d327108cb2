// Handlers that the program sets. Those of our signals (thread.h) are kept for it, and called for what is not ours. Before
// each of the others stands one of ours: what a handler leaves in the mask behind it holds from there on, and a thread
// that has one of our signals blocked would be killed by its next touch.
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <atomic>

#include "hostrace/errno_kept.h"
#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/masked.h"
#include "hostrace/owned_lock.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

HOSTRACE_NEXT(sigaction);

using Run = void (*)(int, siginfo_t*, void*);

struct Handler {
    std::atomic<Run> run{nullptr};  // the last one
    std::atomic<bool> wants_info{false};
    std::atomic<std::uint64_t> blocked{0};  // what its mask would block besides
};
std::array<Handler, NSIG> handlers;

Handler& handler_of(int signal) { return handlers[static_cast<std::size_t>(signal)]; }

// False where it has to run now: those of real time come in their order, and where it runs once, the kernel has forgotten
// it already.
bool comes_again(int signal, siginfo_t* info, ucontext_t& context) {
    KernelAction kernels{};
    constexpr int kFirstOfRealTime = 32;
    const bool at_our_books = AtOurBooks::now();
    const bool sent_too_early = sent_in_a_step(*info) || sent_to_ours(*info, context);
    if ((!at_our_books && !sent_too_early) || signal >= kFirstOfRealTime ||
        to_linux(SYS_rt_sigaction, signal, nullptr, &kernels, sizeof kernels.mask) != 0 || kernels.handler == nullptr) {
        return false;
    }
    if (at_our_books) {
        AtOurBooks::put_off_signal(bit_of(signal));
    }
    return come_again(signal, *info, context);
}

void on_signal(int signal, siginfo_t* info, void* raw) {
    const Handler& handler = handler_of(signal);
    auto& context = *static_cast<ucontext_t*>(raw);
    if (comes_again(signal, info, context)) {
        return;
    }
    leave_step(signal, context);
    tell_blocked(context);
    self().blocked |= handler.blocked.load(std::memory_order_relaxed);
    if (const Watcher* watch = watcher(); watch != nullptr && !watch->guard.ended()) {
        // It may be called later, by who stands in between, with everything blocked.
        to_linux(SYS_rt_sigprocmask, SIG_UNBLOCK, &kOurSignals, nullptr, sizeof kOurSignals);
    }
    handler.run.load(std::memory_order_acquire)(signal, info, raw);
    const ErrnoKept of_the_handler;
    take_blocked(context);
}

// From now on the kernel calls ours.
void keep(int signal, std::uint64_t blocked, struct sigaction& action) {
    Handler& handler = handler_of(signal);
    handler.blocked.store(blocked, std::memory_order_relaxed);
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
        handler.wants_info.store((action.sa_flags & SA_SIGINFO) != 0, std::memory_order_relaxed);
        handler.run.store(action.sa_sigaction, std::memory_order_release);
        action.sa_sigaction = on_signal;
        action.sa_flags |= SA_SIGINFO;
    }
}

// Who stands between the kernel and handlers may block everything in there, as ThreadSanitizer does.
void keep_ours_open(int signal) {
    KernelAction kernels{};
    if (to_linux(SYS_rt_sigaction, signal, nullptr, &kernels, sizeof kernels.mask) == 0 &&
        (kernels.mask & kOurSignals) != 0) {
        kernels.mask &= ~kOurSignals;
        to_linux(SYS_rt_sigaction, signal, &kernels, nullptr, sizeof kernels.mask);
    }
}

}  // namespace

int libc_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    return next_sigaction(signal, action, before);
}

void as_the_program_set(int signal, struct sigaction& action) {
    const Handler& handler = handler_of(signal);
    Masked::tell(&action.sa_mask, handler.blocked.load(std::memory_order_relaxed));
    const bool runs = action.sa_sigaction == on_signal;
    if (runs) {
        action.sa_sigaction = handler.run.load(std::memory_order_relaxed);
    }
    if (runs || action.sa_handler == SIG_DFL) {  // once it has run, it may be gone, and its flags are not
        const int wanted = handler.wants_info.load(std::memory_order_relaxed) ? SA_SIGINFO : 0;
        action.sa_flags = (action.sa_flags & ~SA_SIGINFO) | wanted;
    }
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
    struct sigaction told{};
    if (const int result = next_sigaction(signal, nullptr, &told); result != 0) {
        return result;
    }
    as_the_program_set(signal, told);
    int result = 0;
    if (action != nullptr) {
        const Masked mask(&action->sa_mask);
        struct sigaction ours = *action;
        ours.sa_mask = *mask.given;
        if (!in_child_of_vfork()) {
            keep(signal, mask.bits, ours);
        }
        result = next_sigaction(signal, &ours, nullptr);
        keep_ours_open(signal);
    }
    if (result == 0 && before != nullptr) {
        *before = told;
    }
    return result;
}
HOSTRACE_EXPORT int other_sigaction(int signal, const struct sigaction* action,
                                    struct sigaction* before) __asm__("__sigaction");
int other_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    return sigaction(signal, action, before);
}
