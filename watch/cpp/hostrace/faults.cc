#include "hostrace/faults.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <cerrno>

#include <atomic>
#include <cstring>

#include "hostrace/machine.h"
#include "hostrace/stacks.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

constexpr int kSignals = 64;
constexpr int kRetriesMax = 1000;
constexpr std::uint64_t kRetryWithinNs = 1'000'000;
constexpr std::uint64_t kFaults = kOurSignals | bit_of(SIGBUS) | bit_of(SIGILL) | bit_of(SIGFPE);

struct Program {
    OwnedLock lock;
    std::array<struct sigaction, kOurs.size()> actions{};
};

Program program;
std::atomic<std::uint64_t> taken{0};  // signals that come to us
bool stepping_works = true;

struct sigaction& programs(int signal) {
    std::size_t at = 0;
    while (kOurs[at] != signal) {
        ++at;
    }
    return program.actions[at];
}

// The kernel keeps 64 signals in the first word of the mask that it restores.
std::uint64_t mask_of(const ucontext_t& context) {
    std::uint64_t mask;
    std::memcpy(&mask, &context.uc_sigmask, sizeof mask);
    return mask;
}

void set_mask(ucontext_t& context, std::uint64_t mask) { std::memcpy(&context.uc_sigmask, &mask, sizeof mask); }

void end_step(Thread& thread, ucontext_t& context) {
    if (Watcher* watch = watcher()) {
        for (std::size_t at = 0; at < thread.steps; ++at) {
            watch->guard.close({thread.stepping[at]});
        }
    }
    thread.steps = 0;
    machine::step(context, false);
    set_mask(context, thread.mask);
}

void begin_step(Thread& thread, const Opening& opening, ucontext_t& context) {
    if (thread.steps == 0) {
        thread.mask = mask_of(context);
        set_mask(context, ~kFaults);  // nothing else runs while the page is open
        machine::step(context, true);
    }
    thread.stepping[thread.steps++] = opening.pages;
}

// Faults that find nothing in the way follow one another closely only where the fault is the program's own.
bool retry(Thread& thread, std::uintptr_t address) {
    const std::uint64_t now = now_ns();
    const bool again = thread.retry_at == address && now - thread.retry_ns < kRetryWithinNs;
    thread.retries = again ? thread.retries + 1 : 0;
    thread.retry_at = address;
    thread.retry_ns = now;
    return thread.retries < kRetriesMax;
}

// True where the instruction may be tried again.
bool resolve(std::uintptr_t address, ucontext_t& context) {
    Watcher* watch = watcher();
    if (watch == nullptr) {
        return false;
    }
    Thread& thread = self();
    if (watch->guard.locked_by_me()) {
        // A handler of the program interrupted us at our books. Waiting for ourselves would never end: open the page.
        count(watch->counts.dropped);
        const auto opened = [&](std::uintptr_t page) {
            void* const begin = reinterpret_cast<void*>(address & ~(page - 1));
            return mprotect(begin, page, PROT_READ | PROT_WRITE) == 0;
        };
        const std::uintptr_t large = watch->guard.large_page();
        return opened(kPageSize) || (large != 0 && opened(large));
    }
    const Access access = machine::writes(context) ? Access::write : Access::read;
    const Verdict verdict = watch->guard.touch(address, 1, access);
    switch (verdict.answer) {
        case Answer::foreign:
            return false;
        case Answer::nothing:
            return retry(thread, address);
        case Answer::opened:
            return true;
        case Answer::step:
            if (!stepping_works || thread.steps == thread.stepping.size()) {
                static_cast<void>(watch->guard.give_back(verdict.opening.pages.begin,
                                                         verdict.opening.pages.end - verdict.opening.pages.begin));
                watch->guard.close(verdict.opening);
                return true;
            }
            begin_step(thread, verdict.opening, context);
            return true;
        case Answer::race: {
            const auto* instruction = machine::instruction(context);
            Frames frames;
            native_frames(frames, instruction);
            watch->raced({verdict, access, nullptr, instruction, frames.data()});
            return true;
        }
    }
    return false;
}

}  // namespace

void chain(int signal, siginfo_t* info, void* context) {
    program.lock.lock_unless_mine();
    struct sigaction action = programs(signal);
    program.lock.unlock();
    const bool by_kernel = info->si_code > 0;
    if (action.sa_handler == SIG_IGN && !by_kernel) {
        return;
    }
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        struct sigaction ending{};
        ending.sa_handler = SIG_DFL;
        libc_sigaction(signal, &ending, nullptr);
        if (!by_kernel || signal == SIGSYS) {
            syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
        }
        return;  // a faulting instruction faults again, and now for good
    }
    if ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
        program.lock.lock_unless_mine();
        programs(signal).sa_handler = SIG_DFL;
        programs(signal).sa_flags = 0;
        program.lock.unlock();
    }
    std::uint64_t mask = 0;
    std::memcpy(&mask, &action.sa_mask, sizeof mask);
    if ((action.sa_flags & SA_NODEFER) == 0) {
        mask |= bit_of(signal);
    }
    mask |= mask_of(*static_cast<ucontext_t*>(context));
    mask &= ~bit_of(SIGSYS);  // the handler may make calls past the C library
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof mask);
    if ((action.sa_flags & SA_SIGINFO) != 0) {
        action.sa_sigaction(signal, info, context);
    } else {
        action.sa_handler(signal);
    }
}

namespace {

void on_fault(int signal, siginfo_t* info, void* raw) {
    const int errno_before = errno;
    auto& context = *static_cast<ucontext_t*>(raw);
    if (info->si_code == SEGV_ACCERR && resolve(reinterpret_cast<std::uintptr_t>(info->si_addr), context)) {
        errno = errno_before;
        return;
    }
    if (self().steps != 0) {
        end_step(self(), context);
    }
    errno = errno_before;
    chain(signal, info, raw);
}

void on_trap(int signal, siginfo_t* info, void* raw) {
    const int errno_before = errno;
    if (self().steps != 0) {
        end_step(self(), *static_cast<ucontext_t*>(raw));
        errno = errno_before;
        return;
    }
    chain(signal, info, raw);
}

}  // namespace

bool ProcessPages::protect(std::uintptr_t begin, std::size_t bytes, Protection protection) {
    int flags = PROT_NONE;
    if (protection != Protection::closed) {
        flags = protection == Protection::open ? PROT_READ | PROT_WRITE : PROT_READ;
    }
    return mprotect(reinterpret_cast<void*>(begin), bytes, flags) == 0;
}

bool is_ours(int signal) {
    return signal > 0 && signal <= kSignals && (taken.load(std::memory_order_acquire) & bit_of(signal)) != 0;
}

bool take_signal(int signal, const struct sigaction& action) {
    if (libc_sigaction(signal, &action, &programs(signal)) != 0) {
        return false;
    }
    taken.fetch_or(bit_of(signal), std::memory_order_release);
    return true;
}

int program_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    program.lock.lock_unless_mine();
    if (before != nullptr) {
        *before = programs(signal);
    }
    if (action != nullptr) {
        programs(signal) = *action;
    }
    program.lock.unlock();
    return 0;
}

bool install_handlers(bool can_step) {
    stepping_works = can_step && machine::kSteps;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigfillset(&action.sa_mask);
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS}) {
        sigdelset(&action.sa_mask, signal);
    }
    action.sa_sigaction = on_fault;
    if (!take_signal(SIGSEGV, action)) {
        return false;
    }
    action.sa_sigaction = on_trap;
    return take_signal(SIGTRAP, action);
}

}  // namespace hostrace
