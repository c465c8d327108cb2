// Programs that take calls into the kernel for themselves, or forbid them, while the device uses pinned memory.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <csignal>

#include <thread>
#include <vector>

#include "signals.h"

namespace harm {
namespace {

#if defined(__x86_64__)
constexpr int kDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH
volatile char selector = 0;
std::atomic<int> dispatched{0};

// A call is answered by the program itself.
void answer_calls() {
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = [](int, siginfo_t*, void* context) {
        selector = 0;
        ++dispatched;
        static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = 4711;
    };
    sigaction(SIGSYS, &action, nullptr);
}
template <typename Dispatch>
int dispatches(Dispatch dispatch) {
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    answer_calls();
    signal(SIGSEGV, mend);
    std::atomic<bool> done{false};
    // Its calls go past the C library meanwhile.
    std::thread other([&] {
        for (int round = 0; round < 50 || !done; ++round) {
            pair.wake();
            if (raw_read(pair.ends[0], pinned.page + 1024, 4) != 4) {
                std::printf("failed\n");
            }
        }
    });
    say("dispatch", dispatch(1L, 0L, 0L, address(const_cast<char*>(&selector))));
    for (int round = 0; round < 3; ++round) {
        selector = 1;
        const long answer = raw(SYS_getppid);
        const long after = selector;
        selector = 1;
        touch(pinned);
        selector = 0;
        fault();
        std::printf("answer %ld selector %ld handled %d dispatched %d\n", answer, after, handled, dispatched.load());
    }
    selector = 1;
    const pid_t id = getppid();
    std::printf("answer %d\n", id);
    done = true;
    other.join();
    say("off", dispatch(0L, 0L, 0L, 0L));
    pinned.cuda.finish();
    pinned.cuda.send(pinned.page, 64);
    pinned.cuda.wait();
    return 0;
}
PROGRAM(calls_that_the_program_answers) {
    return dispatches([](long on, long begin, long bytes, long at) { return prctl(kDispatch, on, begin, bytes, at); });
}
PROGRAM(calls_that_the_program_answers_by_number) {
    return dispatches(
        [](long on, long begin, long bytes, long at) { return syscall(SYS_prctl, kDispatch, on, begin, bytes, at); });
}
PROGRAM(calls_that_the_program_answers_by_a_raw_call) {
    return dispatches(
        [](long on, long begin, long bytes, long at) { return raw(SYS_prctl, kDispatch, on, begin, bytes, at); });
}
#endif

using Filter = std::vector<sock_filter>;
Filter for_calls(const std::vector<long>& calls, unsigned those, unsigned others) {
    Filter filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const long number : calls) {
        filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
        filter.push_back(BPF_STMT(BPF_RET | BPF_K, those));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, others));
    return filter;
}
void close_in(Filter filter, int way) {
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    const long result = way == 0   ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                        : way == 1 ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                                   : raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, address(&program));
    say("seccomp", result);
}
int goes_on(Filter filter, int way) {
    static Pinned pinned;
    close_in(std::move(filter), way);
    for (int round = 0; round < 3; ++round) {
        touch(pinned);
        std::printf("%d\n", pinned.page[1]);
        pinned.cuda.finish();
        pinned.page[2048] = 1;
        pinned.cuda.close();
        pinned.cuda.send(pinned.page + 2048, 512);
    }
    pinned.cuda.finish();
    return 0;
}
PROGRAM(sandbox_that_kills_for_protection) {
    return goes_on(for_calls({SYS_mprotect}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW), 0);
}
PROGRAM(sandbox_that_refuses_protection) {
    return goes_on(for_calls({SYS_mprotect}, SECCOMP_RET_ERRNO | 1, SECCOMP_RET_ALLOW), 1);
}
PROGRAM(sandbox_that_kills_for_signals) {
    return goes_on(for_calls({SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_rt_sigaction}, SECCOMP_RET_KILL_PROCESS,
                             SECCOMP_RET_ALLOW),
                   2);
}
PROGRAM(sandbox_that_allows_little) {
    return goes_on(for_calls({SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_futex, SYS_mmap, SYS_munmap, SYS_brk,
                              SYS_exit, SYS_exit_group, SYS_sched_yield, SYS_fstat, SYS_newfstatat},
                             SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS),
                   0);
}
// Nothing is watched in there, and no handler can return.
PROGRAM(sandbox_with_calls_past_the_library) {
    Pinned pinned;
    close_in(for_calls({SYS_rt_sigreturn}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW), 0);
    say("parent", raw(SYS_getppid) == getppid());
    return 0;
}
PROGRAM(sandbox_that_allows_almost_nothing) {
    Pinned pinned;
    std::thread([&] {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        touch(pinned);
        static_cast<void>(!write(1, "closed in\n", 10));
        raw(SYS_exit, 3);
    }).join();
    touch(pinned);
    return 0;
}
// The handler of the call that the sandbox hands over touches pinned memory, and makes calls itself.
PROGRAM(sandbox_whose_handler_touches_pinned_memory) {
    static Pinned pinned;
    static int asked = 0;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
        const Pair pair(SOCK_STREAM);
        pinned.page[7] = static_cast<char>(pinned.page[6] + 1);
        pair.wake();
        asked += raw_read(pair.ends[0], pinned.page + 8, 4) == 4 && info->si_syscall == SYS_getpgid ? 1 : 100;
        say_mask("in the handler");
    };
    sigaction(SIGSYS, &action, nullptr);
    close_in(for_calls({SYS_getpgid}, SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW), 2);
    for (int round = 0; round < 3; ++round) {
        static_cast<void>(getpgid(0));
        raw(SYS_getpgid, 0);
        touch(pinned);
    }
    say("asked", asked);
    return 0;
}

}  // namespace
}  // namespace harm
