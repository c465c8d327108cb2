// Programs that set handlers and masks of the signals that hostrace needs, in each way that the C library has.
#include <mqueue.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <csignal>
#include <ctime>

#include <string>
#include <thread>
#include <vector>

#include "signals.h"

namespace harm {
namespace {

using Install = sighandler_t (*)(int, sighandler_t) noexcept;
Install by_name(const char* name) { return reinterpret_cast<Install>(dlsym(RTLD_DEFAULT, name)); }

unsigned long bit(int number) { return 1UL << (number - 1); }

PROGRAM(handlers_by_older_functions) {
    Pinned pinned;
    for (const char* name : {"signal", "bsd_signal", "ssignal", "sysv_signal", "__sysv_signal", "sigset"}) {
        const Install install = by_name(name);
        std::printf("%s\n", name);
        for (const int signal : {SIGSEGV, SIGSYS, SIGTRAP, SIGUSR1}) {
            std::printf("before: %s\n", name_of(install(signal, mend)));
            say_action(signal);
        }
        fault();
        touch(pinned);
        raise(SIGUSR1);
        raise(SIGSYS);
        std::printf("handled %d\n", handled);
        for (const int signal : {SIGSEGV, SIGSYS, SIGTRAP, SIGUSR1}) {
            std::printf("after: %s\n", name_of(install(signal, SIG_IGN)));
            std::printf("ignored: %s\n", name_of(install(signal, SIG_DFL)));
        }
        std::printf("wrong: %s\n", name_of(install(SIGKILL, mend)));
        std::printf("wrong: %s\n", name_of(install(-1, mend)));
        touch(pinned);
    }
    return 0;
}
PROGRAM(handlers_by_other_names_of_sigaction) {
    Pinned pinned;
    const auto set = reinterpret_cast<decltype(&sigaction)>(dlsym(RTLD_DEFAULT, "__sigaction"));
    struct sigaction action{};
    action.sa_handler = mend;
    say("set", set(SIGSEGV, &action, nullptr));
    fault();
    touch(pinned);
    say_action(SIGSEGV);
    say("ignore", sigignore(SIGSYS));
    say_action(SIGSYS);
    say("ignore", sigignore(SIGSEGV));
    say_action(SIGSEGV);
    touch(pinned);
    std::printf("handled %d\n", handled);
    return 0;
}
PROGRAM(handlers_that_interrupt) {
    static int seen = 0;
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    for (const int number : {SIGUSR1, SIGSEGV}) {
        for (const int interrupts : {1, 0}) {
            say("siginterrupt", siginterrupt(number, interrupts));
            signal(number, [](int) { ++seen; });
            say_action(number);
            touch(pinned);
            std::atomic<int> thread{0};
            const int before = seen;
            std::thread waits([&] {
                thread = static_cast<int>(syscall(SYS_gettid));
                std::array<char, 4> data{};
                say("read", read(pair.ends[0], data.data(), data.size()));
            });
            while (thread == 0) {
                sched_yield();
            }
            until_blocked(thread, SYS_read);
            pthread_kill(waits.native_handle(), number);
            while (seen == before) {
                sched_yield();
            }
            if (interrupts == 0) {
                pair.wake();
            }
            waits.join();
        }
    }
    return 0;
}

// A page of ours is touched while the program believes that it has blocked the signals.
PROGRAM(masks_by_older_functions) {
    Pinned pinned;
    const int ours = sigmask(SIGSEGV) | sigmask(SIGTRAP) | sigmask(SIGSYS);
    const auto touch_with = [&](const char* what, long result) {
        say(what, result);
        say_mask(what);
        touch(pinned);
    };
    touch_with("sigblock", sigblock(ours));
    touch_with("sigblock", sigblock(sigmask(SIGUSR1)));
    touch_with("siggetmask", siggetmask());
    touch_with("sigsetmask", sigsetmask(sigmask(SIGTRAP)));
    touch_with("sigsetmask", sigsetmask(0));
    for (const int signal : {SIGSEGV, SIGSYS, SIGTRAP, SIGUSR1}) {
        touch_with("sighold", sighold(signal));
        touch_with("sigset", sigset(signal, mend) == SIG_HOLD);
        touch_with("sigset", sigset(signal, SIG_HOLD) == mend);
        touch_with("sigset", sigset(signal, SIG_HOLD) == SIG_HOLD);
        touch_with("sigrelse", sigrelse(signal));
        sigset(signal, SIG_DFL);
    }
    return 0;
}
PROGRAM(sigpause_with_everything_else_blocked) {
    static Pinned pinned;
    signal(SIGUSR1, [](int) { ++pinned.page[3]; });
    const auto pause_bsd = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "sigpause"));
    const auto pause_of = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_DEFAULT, "__sigpause"));
    const auto pause_xpg = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "__xpg_sigpause"));
    for (int way = 0; way < 4; ++way) {
        sigsetmask(-1);
        pthread_kill(pthread_self(), SIGUSR1);
        const int most = ~sigmask(SIGUSR1);
        const int result = way == 0   ? pause_bsd(most)
                           : way == 1 ? pause_of(most, 0)
                           : way == 2 ? pause_of(SIGUSR1, 1)
                                      : pause_xpg(SIGUSR1);
        say("sigpause", result);
        std::printf("wrote %d\n", pinned.page[3]);
        say_mask("after");
    }
    return 0;
}

// The child has its parent's memory, and signals of its own, as Python's subprocess resets them there.
PROGRAM(child_of_vfork_that_sets_signals) {
    static std::atomic<int> handled{0};
    const Pinned pinned;
    struct sigaction action{};
    action.sa_handler = [](int) { ++handled; };
    sigfillset(&action.sa_mask);
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGUSR1, &action, nullptr);
    if (const pid_t child = vfork(); child != 0) {
        waitpid(child, nullptr, 0);
    } else {
        struct sigaction none{};
        sigset_t all;
        sigfillset(&all);
        sigaction(SIGSEGV, &none, nullptr);
        sigaction(SIGUSR1, &none, nullptr);
        sigprocmask(SIG_SETMASK, &all, nullptr);
        _exit(0);
    }
    raise(SIGSEGV);
    raise(SIGUSR1);
    say("handled", handled);
    for (const int signal : {SIGSEGV, SIGUSR1}) {
        sigaction(signal, nullptr, &action);
        say("blocks", sigismember(&action.sa_mask, SIGTRAP));
    }
    return 0;
}

// What somebody sends waits until the program takes it.
PROGRAM(signals_that_are_sent_while_blocked) {
    Pinned pinned;
    sigset_t all;
    sigset_t waiting;
    sigfillset(&all);
    for (const int number : {SIGSEGV, SIGTRAP, SIGSYS}) {
        handled = 0;
        signal(number, [](int) { ++handled; });
        sighold(number);
        raise(number);
        raise(number);
        touch(pinned);
        sigpending(&waiting);
        std::printf("waits %d handled %d\n", sigismember(&waiting, number), handled);
        sigrelse(number);
        std::printf("handled %d\n", handled);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        raise(number);
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, number);
        int got = 0;
        say("sigwait", sigwait(&one, &got));
        std::printf("got %d handled %d\n", got, handled);
        pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
        std::printf("handled %d\n", handled);
    }
    return 0;
}
PROGRAM(fault_while_blocked) {
    Pinned pinned;
    signal(SIGSEGV, mend);
    sighold(SIGSEGV);
    touch(pinned);
    std::printf("blocked\n");
    fault();  // ends the program: the handler is not called
    std::printf("mended\n");
    return 0;
}

// A handler of the program's own fault reads and writes pinned memory beside what the device uses.
PROGRAM(handler_that_touches_pinned_memory) {
    static Pinned pinned;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int number, siginfo_t* info, void* raw) {
        const Pair pair(SOCK_STREAM);
        pinned.page[7] = static_cast<char>(pinned.page[6] + 1);
        pair.wake();
        say("read", read(pair.ends[0], pinned.page + 8, 4));
        say_mask("in the handler");
        std::printf("before it: %d\n", sigismember(&static_cast<ucontext_t*>(raw)->uc_sigmask, SIGTRAP));
        std::printf("own page %d\n", info->si_addr == own_page);
        mend(number);
    };
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGTRAP);
    for (int round = 0; round < 2; ++round) {
        sigaction(SIGSEGV, &action, nullptr);
        fault();
        say_mask("after it");
        pinned.page[9] = 1;
        pthread_sigmask(SIG_BLOCK, &some, nullptr);
        sigfillset(&action.sa_mask);
    }
    return 0;
}
// On a stack that has room for one of them.
PROGRAM(handler_on_a_small_stack_that_touches_pinned_memory) {
    static Pinned pinned;
    const long least = sysconf(_SC_MINSIGSTKSZ) + 2048;
    std::vector<char> room(static_cast<std::size_t>(least) + 2 * kPage);
    char* const begin = reinterpret_cast<char*>((address(room.data()) + 4095) & ~4095L);
    mprotect(begin, kPage, PROT_NONE);
    const stack_t stack{begin + kPage, 0, static_cast<std::size_t>(least)};
    sigaltstack(&stack, nullptr);
    struct sigaction action{};
    action.sa_flags = SA_ONSTACK;
    action.sa_handler = [](int number) {
        pinned.page[7] = static_cast<char>(pinned.page[6] + 1);
        mend(number);
    };
    sigaction(SIGSEGV, &action, nullptr);
    for (int round = 0; round < 3; ++round) {
        fault();
        pinned.page[9] = 1;
        std::printf("handled %d, %d\n", handled, pinned.page[7]);
    }
    return 0;
}
PROGRAM(fault_in_the_handler) {
    Pinned pinned;
    signal(SIGSEGV, [](int) {
        static_cast<void>(!write(1, "handled\n", 8));
        *reinterpret_cast<volatile int*>(8) = 1;
    });
    touch(pinned);
    fault();
    return 0;
}
PROGRAM(trap_without_a_handler) {
    Pinned pinned;
    touch(pinned);
    trap();
    std::printf("not reached\n");
    return 0;
}
PROGRAM(handler_that_ends_by_its_own_signal) {
    static Pinned pinned;
    signal(SIGSEGV, [](int number) {
        signal(number, SIG_DFL);
        raise(number);
        pinned.page[0] = 'x';
        static_cast<void>(!write(1, "it waits\n", 9));
    });
    fault();
    std::printf("not reached\n");
    return 0;
}

// What a handler leaves in the mask behind it holds from there on, whatever its signal.
PROGRAM(handlers_that_block_signals_behind_them) {
    struct KernelAction {
        void (*handler)(int, siginfo_t*, void*);
        unsigned long flags;
        void* restorer;
        unsigned long mask;
    };
    static std::array<int, 3> rounds{};
    static const auto block = [](int number, siginfo_t* info, void* raw) {
        ++rounds[0];
        rounds[1] += info->si_signo == number && info->si_pid == getpid() ? 1 : 0;
        auto& mask = static_cast<ucontext_t*>(raw)->uc_sigmask;
        rounds[2] += sigismember(&mask, SIGTRAP);
        for (const int ours : {SIGSEGV, SIGTRAP, SIGSYS}) {
            sigaddset(&mask, ours);
        }
    };
    Pinned pinned;
    const auto blocks = [&](const char* how, auto set) {
        set();
        for (int round = 0; round < 2; ++round) {
            pthread_kill(pthread_self(), SIGUSR1);
            say_mask(how);
            touch(pinned);
        }
        sigsetmask(0);
        std::printf("%s: handled %d by itself %d blocked %d\n", how, rounds[0], rounds[1], rounds[2]);
    };
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = block;
    blocks("by sigaction", [&] { sigaction(SIGUSR1, &action, nullptr); });
    struct sigaction before{};
    sigaction(SIGUSR1, nullptr, &before);
    say("its own", before.sa_sigaction == static_cast<decltype(before.sa_sigaction)>(block));
    action.sa_flags |= static_cast<int>(SA_RESETHAND);
    sigaction(SIGUSR1, &action, &before);
    say("its own", before.sa_sigaction == static_cast<decltype(before.sa_sigaction)>(block));
    pthread_kill(pthread_self(), SIGUSR1);
    touch(pinned);
    say_action(SIGUSR1);
    sigsetmask(0);
    KernelAction kernels{};
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, nullptr);
    syscall(SYS_rt_sigaction, SIGUSR1, nullptr, &kernels, sizeof kernels.mask);
    say("its own", kernels.handler == static_cast<decltype(kernels.handler)>(block));
    signal(SIGUSR1, SIG_DFL);
    blocks("by number", [&] { syscall(SYS_rt_sigaction, SIGUSR1, &kernels, nullptr, sizeof kernels.mask); });
    return 0;
}
// They have to come, with the mask of the thread, though that is busy with what is handled for it.
PROGRAM(signals_that_are_sent_in_the_middle_of_touches) {
    static std::atomic<int> came{0};
    static std::atomic<int> wrong{0};
    Pinned pinned;
    struct sigaction action{};
    action.sa_handler = [](int) {
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, nullptr, &mask);
        wrong += sigismember(&mask, SIGUSR1) + sigismember(&mask, SIGHUP);
        ++came;
    };
    std::atomic<bool> goes_on{true};
    for (const int signal : {SIGSEGV, SIGTRAP, SIGSYS, SIGBUS, SIGUSR2}) {
        sigaction(signal, &action, nullptr);
    }
    std::thread thread([&] {
        while (goes_on) {
            touch(pinned);
        }
    });
    for (const int signal : {SIGSEGV, SIGTRAP, SIGSYS, SIGBUS, SIGUSR2}) {
        came = 0;
        const std::time_t begin = std::time(nullptr);
        // One that is sent while the kernel is about to tell of a touch is one with that.
        while (came < 200 && std::time(nullptr) - begin < 20) {
            pthread_kill(thread.native_handle(), signal);
            sched_yield();
        }
        say("came", came >= 200);
        say("wrong", wrong);
    }
    goes_on = false;
    thread.join();
    return 0;
}
// The C library starts the thread by itself, so that its touch is the first that we hear of it.
PROGRAM(thread_of_the_library_that_touches_and_faults) {
    static Pinned pinned;
    static std::atomic<bool> over{false};
    signal(SIGSEGV, mend);
    const std::string name = "/harm-" + std::to_string(getpid());
    mq_attr made{};
    made.mq_maxmsg = made.mq_msgsize = 1;
    const mqd_t queue = mq_open(name.c_str(), O_RDWR | O_CREAT, 0600, &made);
    mq_unlink(name.c_str());
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD;
    event.sigev_notify_function = [](sigval) {
        touch(pinned);
        fault();
        over = true;
    };
    say("notify", mq_notify(queue, &event));
    say("send", mq_send(queue, "x", 1, 0));
    while (!over) {
        sched_yield();
    }
    say("handled", handled);
    return 0;
}
// By the C library's function for calls that have none, and past it.
template <typename Make>
int masks_by(Make make) {
    static Pinned pinned;
    static int touched = 0;
    signal(SIGUSR1, [](int) {
        touch(pinned);
        ++touched;
    });
    unsigned long all = ~0UL;
    unsigned long before = 0;
    const unsigned long most = ~bit(SIGUSR1);
    say("block", make(SYS_rt_sigprocmask, SIG_SETMASK, address(&all), address(&before), sizeof all, 0, 0));
    std::printf("before %lx\n", before);
    touch(pinned);
    say_mask("blocked");
    say("asked", make(SYS_rt_sigprocmask, SIG_BLOCK, 0, address(&before), sizeof before, 0, 0));
    std::printf("blocked %lx\n", before);
    pollfd none{-1, 0, 0};
    epoll_event event{};
    const int set = epoll_create1(0);
    const std::array<unsigned long, 2> sized{static_cast<unsigned long>(address(&most)), sizeof most};
    const auto wakes = [&](const char* what, auto... arguments) {
        pthread_kill(pthread_self(), SIGUSR1);
        errno = 0;
        const long result = make(arguments...);
        std::printf("%s %d touched %d\n", what, result == -1 ? -errno : static_cast<int>(result), touched);
        say_mask(what);
        touch(pinned);
    };
    wakes("suspend", SYS_rt_sigsuspend, address(&most), sizeof most, 0, 0, 0, 0);
    wakes("ppoll", SYS_ppoll, address(&none), 1, 0, address(&most), sizeof most, 0);
    wakes("pselect", SYS_pselect6, 0, 0, 0, 0, 0, address(&sized));
    wakes("epoll", SYS_epoll_pwait, set, address(&event), 1, -1, address(&most), sizeof most);
    struct {
        void (*handler)(int);
        unsigned long flags;
        void* restorer;
        unsigned long mask;
    } ignored{SIG_IGN, 0, nullptr, 0};
    for (const int number : {SIGSEGV, SIGSYS, SIGTRAP}) {
        say("ignore", make(SYS_rt_sigaction, number, address(&ignored), 0, sizeof all, 0, 0));
        say_action(number);
        touch(pinned);
    }
    return 0;
}
PROGRAM(masks_by_number) {
    return masks_by([](auto... arguments) { return syscall(arguments...); });
}
PROGRAM(masks_by_a_raw_call) {
    return masks_by([](auto... arguments) { return raw(arguments...); });
}

}  // namespace
}  // namespace harm
