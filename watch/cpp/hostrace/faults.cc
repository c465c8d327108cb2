#include "hostrace/faults.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <cerrno>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "hostrace/errno_kept.h"
#include "hostrace/interpose.h"
#include "hostrace/libc.h"
#include "hostrace/machine.h"
#include "hostrace/maps.h"
#include "hostrace/stacks.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

constexpr int kSignals = 64;
constexpr int kRetriesMax = 1000;
constexpr std::uint64_t kRetryWithinNs = 1'000'000;
constexpr std::uint64_t kFaults = kOurSignals | bit_of(SIGBUS) | bit_of(SIGILL) | bit_of(SIGFPE);
// The C library's own, which its masks leave out: a thread that another cancels would leave our handler in the middle.
constexpr std::uint64_t kOfTheLibrary = bit_of(32) | bit_of(33);

struct Program {
    OwnedLock lock;
    std::array<struct sigaction, kOurs.size()> actions{};
    std::array<siginfo_t, kOurs.size()> sent{};  // last, while it was blocked
};

Program program;
std::atomic<std::uint64_t> taken{0};  // signals that come to us
std::atomic<bool> masks_unseen{false};
bool stepping_works = true;

std::size_t place_of(int signal) {
    std::size_t at = 0;
    while (kOurs[at] != signal) {
        ++at;
    }
    return at;
}

struct sigaction& programs(int signal) { return program.actions[place_of(signal)]; }

// Of a handler that may have interrupted who has it.
class Held {
  public:
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
        if (taken_) {
            program.lock.unlock();
        }
    }

  private:
    const bool taken_ = program.lock.lock_unless_mine();
};

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
    if ((thread.waiting & ~thread.blocked) != 0) {
        to_linux(SYS_rt_sigprocmask, SIG_BLOCK, &kOurSignals, nullptr, sizeof kOurSignals);
        send_what_waited();  // it comes where the handler that we are in has returned to
    }
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
    if (ended_in_child()) {
        return true;
    }
    Watcher* watch = watcher();
    if (watch == nullptr) {
        return false;
    }
    Thread& thread = self();
    if (watch->guard.locked_by_me()) {
        return watch->open_past_the_books({address, address + 1});
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

// A call that waits goes on behind a signal that somebody sends, or fails with EINTR, as the program's handler has it.
void restart_calls_as(const struct sigaction& action, int signal) {
    const bool restarts = action.sa_handler == SIG_IGN || (action.sa_flags & SA_RESTART) != 0;
    KernelAction ours{};
    if (to_linux(SYS_rt_sigaction, signal, nullptr, &ours, sizeof ours.mask) == 0 &&
        ((ours.flags & SA_RESTART) != 0) != restarts) {
        ours.flags ^= SA_RESTART;
        to_linux(SYS_rt_sigaction, signal, &ours, nullptr, sizeof ours.mask);
    }
}

void let_wait(Thread& thread, int signal, const siginfo_t& info) {
    const Held held;
    program.sent[place_of(signal)] = info;
    thread.waiting |= bit_of(signal);
}

void end_by(int signal, bool again) {
    const KernelAction ending{};
    to_linux(SYS_rt_sigaction, signal, &ending, nullptr, sizeof ending.mask);
    if (again) {
        to_linux(SYS_tgkill, getpid(), to_linux(SYS_gettid), signal);
    }
}

// A handler of ours on top of the program's would need room of its own there.
bool on_a_small_stack(const ucontext_t& context) {
    constexpr std::size_t kSmall = 64U << 10U;
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    const auto begin = reinterpret_cast<std::uintptr_t>(context.uc_stack.ss_sp);
    return here - begin < context.uc_stack.ss_size && context.uc_stack.ss_size < kSmall;
}

// The handler finds the mask that it would find without us, but our signals reach us: it may touch what is protected.
void call_handler(const struct sigaction& action, int signal, siginfo_t* info, ucontext_t& context) {
    Thread& thread = self();
    std::uint64_t mask = 0;
    std::memcpy(&mask, &action.sa_mask, sizeof mask);
    if ((action.sa_flags & SA_NODEFER) == 0) {
        mask |= bit_of(signal);
    }
    const std::uint64_t others = (mask_of(context) | mask) & ~kOurSignals;
    tell_blocked(context);
    thread.blocked |= mask & kOurSignals;
    Watcher* watch = watcher();
    if (watch != nullptr && !thread.open_in_handler && !watch->guard.locked_by_me() && on_a_small_stack(context)) {
        thread.open_in_handler = true;
        static_cast<void>(watch->guard.open_all_for_now());
    }
    to_linux(SYS_rt_sigprocmask, SIG_SETMASK, &others, nullptr, sizeof others);
    action.sa_sigaction(signal, info, &context);  // the kernel hands over all three whatever the flags say
    const ErrnoKept of_the_handler;
    handler_is_left();
    take_blocked(context);
}

}  // namespace

bool sent_to_ours(const siginfo_t& info, const ucontext_t& context) {
    return info.si_code <= 0 && (mask_of(context) & kOurSignals) != 0 && !masks_unseen.load(std::memory_order_relaxed);
}

bool sent_in_a_step(const siginfo_t& info) { return self().steps != 0 && info.si_code <= 0; }

void leave_step(int signal, ucontext_t& context) {
    if (self().steps == 0) {
        return;
    }
    const ErrnoKept of_the_program;
    end_step(self(), context);
    KernelAction kernels{};
    to_linux(SYS_rt_sigaction, signal, nullptr, &kernels, sizeof kernels.mask);
    const std::uint64_t own = (kernels.flags & SA_NODEFER) == 0 ? bit_of(signal) : 0;
    const std::uint64_t mask = mask_of(context) | kernels.mask | own;
    to_linux(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof mask);
}

bool come_again(int signal, siginfo_t& info, ucontext_t& context) {
    const ErrnoKept of_the_program;
    const std::uint64_t bit = bit_of(signal);
    to_linux(SYS_rt_sigprocmask, SIG_BLOCK, &bit, nullptr, sizeof bit);
    set_mask(context, mask_of(context) | bit);
    return to_linux(SYS_rt_tgsigqueueinfo, getpid(), to_linux(SYS_gettid), signal, &info) == 0;
}

void tell_blocked(ucontext_t& context) { set_mask(context, mask_of(context) | self().blocked); }

void take_blocked(ucontext_t& context) {
    self().blocked = mask_of(context) & kOurSignals;
    set_mask(context, mask_of(context) & ~kOurSignals);
    send_what_waited();
}

void handler_is_left() {
    if (self().open_in_handler) {
        self().open_in_handler = false;
        if (Watcher* watch = watcher()) {
            watch->guard.close({Guard::kEverything, Protection::open});
        }
    }
}

void send_what_waited() {
    Thread& thread = self();
    while ((thread.waiting & ~thread.blocked) != 0) {
        siginfo_t info{};
        const int signal = take_what_waits(~thread.blocked, &info);
        to_linux(SYS_rt_tgsigqueueinfo, getpid(), to_linux(SYS_gettid), signal, &info);
    }
}

int take_what_waits(std::uint64_t set, siginfo_t* info) {
    Thread& thread = self();
    for (const int signal : kOurs) {
        if ((thread.waiting & set & bit_of(signal)) == 0) {
            continue;
        }
        thread.waiting &= ~bit_of(signal);
        const siginfo_t sent = (Held(), program.sent[place_of(signal)]);
        if (info != nullptr) {
            *info = sent;
        }
        return signal;
    }
    return 0;
}

void masks_change_unseen() { masks_unseen.store(true, std::memory_order_relaxed); }

void chain(int signal, siginfo_t* info, void* context) {
    struct sigaction action = (Held(), programs(signal));
    const bool by_kernel = info->si_code > 0;
    Thread& thread = self();
    auto& where = *static_cast<ucontext_t*>(context);
    if (sent_to_ours(*info, where)) {
        static_cast<void>(come_again(signal, *info, where));
        return;
    }
    if (sent_in_a_step(*info)) {
        let_wait(thread, signal, *info);
        return;
    }
    const bool blocked = !masks_unseen.load(std::memory_order_relaxed) && (thread.blocked & bit_of(signal)) != 0;
    if (blocked && !by_kernel) {
        let_wait(thread, signal, *info);
        return;
    }
    if (action.sa_handler == SIG_IGN && !by_kernel) {
        return;
    }
    if (blocked || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        // A faulting instruction faults again, and now for good.
        end_by(signal, !by_kernel || signal != SIGSEGV);
        return;
    }
    if ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
        const Held held;
        programs(signal).sa_handler = SIG_DFL;
    }
    call_handler(action, signal, info, where);
}

namespace {

void on_fault(int signal, siginfo_t* info, void* raw) {
    const int errno_before = errno;
    auto& context = *static_cast<ucontext_t*>(raw);
    set_mask(context, begin_in_handler(mask_of(context)));
    if (info->si_code == SEGV_ACCERR && resolve(reinterpret_cast<std::uintptr_t>(info->si_addr), context)) {
        errno = errno_before;
        return;
    }
    if (self().steps != 0 && !sent_in_a_step(*info)) {
        end_step(self(), context);
    }
    errno = errno_before;
    chain(signal, info, raw);
}

void on_trap(int signal, siginfo_t* info, void* raw) {
    const int errno_before = errno;
    auto& context = *static_cast<ucontext_t*>(raw);
    set_mask(context, begin_in_handler(mask_of(context)));
    if (self().steps != 0 && !sent_in_a_step(*info)) {
        end_step(self(), context);
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
    return libc::mprotect(reinterpret_cast<void*>(begin), bytes, flags) == 0;
}

std::vector<Span> ProcessPages::with_other_rights(Span span) {
    std::vector<Span> found;
    const bool known = each_mapped([&](const Mapped& part) {
        if (part.meets(span) && std::strncmp(part.rights, "rw-", 3) != 0) {
            found.push_back({std::max(part.begin, span.begin), std::min(part.end, span.end)});
        }
    });
    return known ? found : std::vector<Span>{span};
}

bool is_ours(int signal) {
    return signal > 0 && signal <= kSignals && (taken.load(std::memory_order_acquire) & bit_of(signal)) != 0;
}

// Past those who stand between the kernel and handlers, as sanitizers do: they block our other signals in there, and
// make calls past the C library, or keep the signal for themselves. What the handler returns by is what the C library
// set.
bool take_signal(int signal, const struct sigaction& action) {
    const auto kernels = [signal](const KernelAction* set, KernelAction* get) {
        return to_linux(SYS_rt_sigaction, signal, set, get, sizeof set->mask) == 0;
    };
    struct sigaction before{};
    KernelAction then{};
    KernelAction now{};
    if (!kernels(nullptr, &then) || libc_sigaction(signal, &action, &before) != 0 || !kernels(nullptr, &now)) {
        return false;
    }
    if (before.sa_handler == SIG_DFL && then.handler != nullptr) {
        before.sa_sigaction = reinterpret_cast<decltype(before.sa_sigaction)>(then.handler);
        before.sa_flags = static_cast<int>(then.flags);
        std::memcpy(&before.sa_mask, &then.mask, sizeof then.mask);
    }
    as_the_program_set(signal, before);
    programs(signal) = before;
    taken.fetch_or(bit_of(signal), std::memory_order_release);
    now.handler = reinterpret_cast<void*>(action.sa_sigaction);
    now.flags = (now.flags & kRestorer) | static_cast<unsigned>(action.sa_flags);
    std::memcpy(&now.mask, &action.sa_mask, sizeof now.mask);
    now.mask |= signal == SIGSYS ? 0 : kOfTheLibrary;
    if (!kernels(&now, nullptr)) {
        return false;
    }
    restart_calls_as(programs(signal), signal);
    return true;
}

void give_signals_back() {
    for (const int signal : kOurs) {
        KernelAction kernels{};
        if (!is_ours(signal) || to_linux(SYS_rt_sigaction, signal, nullptr, &kernels, sizeof kernels.mask) != 0) {
            continue;
        }
        const struct sigaction action = (Held(), programs(signal));
        taken.fetch_and(~bit_of(signal), std::memory_order_release);
        kernels.handler = reinterpret_cast<void*>(action.sa_sigaction);
        kernels.flags = (kernels.flags & kRestorer) | static_cast<unsigned>(action.sa_flags);
        std::memcpy(&kernels.mask, &action.sa_mask, sizeof kernels.mask);
        to_linux(SYS_rt_sigaction, signal, &kernels, nullptr, sizeof kernels.mask);
    }
}

int program_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    // Both may lie in pages of ours: they are touched while the lock is free.
    const struct sigaction wanted = action == nullptr ? (struct sigaction){} : *action;
    const bool sets = action != nullptr && !in_child_of_vfork();
    struct sigaction was{};
    {
        const Held held;
        was = programs(signal);
        programs(signal) = sets ? wanted : was;
    }
    if (sets) {
        restart_calls_as(wanted, signal);
    }
    if (before != nullptr) {
        *before = was;
    }
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
