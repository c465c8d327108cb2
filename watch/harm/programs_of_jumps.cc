// Programs that leave handlers by jumps, and change contexts with masks of their own.
#include <setjmp.h>
#include <ucontext.h>
#include <csignal>

#include <functional>
#include <utility>
#include <vector>

#include "signals.h"

namespace harm {
namespace {

// Each time the handler leaves in one of these ways, and a page of ours is touched afterwards.
PROGRAM(jumps_out_of_a_handler) {
    static sigjmp_buf with_mask;
    static sigjmp_buf without;
    static jmp_buf plain;
    static ucontext_t context;
    static int way = 0;
    Pinned pinned;
    struct sigaction action{};
    action.sa_handler = [](int) {
        switch (way) {
            case 0:
                siglongjmp(with_mask, 1);
            case 1:
                siglongjmp(without, 1);
            case 2:
                longjmp(plain, 1);
            case 3:
                _longjmp(plain, 1);
            default:
                setcontext(&context);
        }
    };
    sigaddset(&action.sa_mask, SIGTRAP);
    sigaction(SIGSEGV, &action, nullptr);
    for (static int round = 0; round < 10; ++round) {
        way = round / 2;
        static volatile bool left;
        left = false;
        const int where = sigsetjmp(with_mask, 1) + sigsetjmp(without, 0) + setjmp(plain);
        getcontext(&context);
        if (where == 0 && !left) {
            left = true;
            fault();
        }
        std::printf("way %d\n", way);
        say_mask("left");
        touch(pinned);
        sigsetmask(0);
        touch(pinned);
    }
    return 0;
}
PROGRAM(handler_that_throws) {
    Pinned pinned;
    for (const int flags : {SA_NODEFER, 0, SA_NODEFER}) {
        struct sigaction action{};
        action.sa_handler = [](int) { throw 7; };
        action.sa_flags = flags;
        sigaction(SIGSEGV, &action, nullptr);
        try {
            fault();
        } catch (int what) {
            std::printf("caught %d\n", what);
        }
        say_mask("behind it");
        touch(pinned);
    }
    return 0;  // the last one ends the program: the one before left the signal blocked
}
PROGRAM(jumps_that_restore_masks) {
    static sigjmp_buf back;
    Pinned pinned;
    for (static int round = 0; round < 2; ++round) {
        (round == 0 ? sighold : sigrelse)(SIGSEGV);
        if (sigsetjmp(back, 1) == 0) {
            (round == 0 ? sigrelse : sighold)(SIGSEGV);
            say_mask("before");
            touch(pinned);
            siglongjmp(back, 1);
        }
        say_mask("restored");
        touch(pinned);
    }
    signal(SIGSEGV, mend);
    fault();
    std::printf("handled %d\n", handled);
    return 0;
}

struct Coroutine {
    explicit Coroutine(std::function<void()> does) : run(std::move(does)) {
        current = this;
        getcontext(&context);
        context.uc_stack = {stack.data(), 0, stack.size()};
        context.uc_link = &caller;
    }
    void make() {
        makecontext(&context, [] { current->run(); }, 0);
    }
    void enter() {
        current = this;
        swapcontext(&caller, &context);
    }
    void leave() { swapcontext(&context, &caller); }

    static inline Coroutine* current = nullptr;
    std::function<void()> run;
    std::vector<char> stack = std::vector<char>(1 << 18);
    ucontext_t context{}, caller{};
};

PROGRAM(contexts_that_block_signals) {
    Pinned pinned;
    Coroutine other([&] {
        say_mask("entered");
        touch(pinned);
        other.leave();
        say_mask("again");
        touch(pinned);
        sigsetmask(0);
        touch(pinned);
        other.leave();
        say_mask("ends");
    });
    sigfillset(&other.context.uc_sigmask);
    other.make();
    say_mask("outside");
    other.enter();
    say_mask("outside");
    touch(pinned);
    sighold(SIGSEGV);
    other.enter();
    say_mask("outside");
    touch(pinned);
    sigrelse(SIGSEGV);
    other.enter();
    say_mask("outside");
    signal(SIGSEGV, mend);
    fault();
    std::printf("handled %d\n", handled);
    return 0;
}
// A server that blocks everything, whose coroutines block nothing.
PROGRAM(contexts_that_unblock_signals) {
    Pinned pinned;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    signal(SIGSEGV, mend);
    Coroutine other([&] {
        for (int round = 0; round < 3; ++round) {
            say_mask("entered");
            touch(pinned);
            fault();
            other.leave();
        }
    });
    sigemptyset(&other.context.uc_sigmask);
    other.make();
    for (int round = 0; round < 3; ++round) {
        other.enter();
        say_mask("outside");
        touch(pinned);
    }
    std::printf("handled %d\n", handled);
    fault();  // ends the program, which has the signal blocked
    return 0;
}
PROGRAM(handler_that_changes_the_mask_behind_it) {
    Pinned pinned;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int number, siginfo_t*, void* raw) {
        auto& mask = static_cast<ucontext_t*>(raw)->uc_sigmask;
        handled == 0 ? sigaddset(&mask, SIGTRAP) : sigaddset(&mask, SIGSEGV);
        mend(number);
    };
    sigaction(SIGSEGV, &action, nullptr);
    for (int round = 0; round < 2; ++round) {
        fault();
        say_mask("behind it");
        touch(pinned);
    }
    sigrelse(SIGSEGV);
    fault();
    std::printf("handled %d\n", handled);
    return 0;
}

// Alarms end calls by a jump, as programs did before there were timeouts, whatever the calls are just about.
sigjmp_buf behind_call;
volatile std::sig_atomic_t in_call = 0;

template <typename Call>
int jumps_out_of(Call call) {
    Pinned pinned;
    const int file = open("/dev/zero", O_RDONLY);
    signal(SIGUSR1, [](int) {
        if (in_call != 0) {
            siglongjmp(behind_call, 1);
        }
    });
    sigevent to_this_thread{};
    to_this_thread.sigev_notify = SIGEV_THREAD_ID;
    to_this_thread.sigev_signo = SIGUSR1;
    to_this_thread._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_t timer{};
    const itimerspec often{{0, 300'000}, {0, 300'000}};
    say("timer", timer_create(CLOCK_MONOTONIC, &to_this_thread, &timer));
    timer_settime(timer, 0, &often, nullptr);
    for (volatile int jumps = 0; jumps < 300; jumps = jumps + 1) {
        if (sigsetjmp(behind_call, 1) == 0) {
            in_call = 1;
            for (;;) {
                call(file, pinned.page);
            }
        }
        in_call = 0;
    }
    pinned.page[0] = 1;
    return 0;
}
PROGRAM(jumps_out_of_calls) {
    return jumps_out_of([](int file, char* page) { static_cast<void>(!read(file, page, 16)); });
}
PROGRAM(jumps_out_of_calls_by_a_raw_call) {
    return jumps_out_of([](int file, char* page) { raw_read(file, page, 16); });
}

// The instruction reads what lies beside the use, so that it is stepped over, and then it faults in another way.
int faults_of_another_kind(int signal, void (*make)(Pinned&)) {
    static sigjmp_buf behind;
    static int traps = 0;
    Pinned pinned;
    std::memset(pinned.page, 0, 2 * sizeof(int));
    struct sigaction action{};
    sigaddset(&action.sa_mask, SIGUSR2);
    action.sa_handler = [](int number) {
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, nullptr, &mask);
        for (const int each : {number, SIGUSR1, SIGUSR2, SIGHUP}) {
            std::printf("%d: %d\n", each, sigismember(&mask, each));
        }
        siglongjmp(behind, number);
    };
    sigaction(signal, &action, nullptr);
    if (const int number = sigsetjmp(behind, 1); number == 0) {
        make(pinned);
    } else {
        say("behind", number);
    }
    ::signal(SIGTRAP, [](int) { ++traps; });
    trap();
    say("traps", traps);
    touch(pinned);
    ::signal(SIGSEGV, mend);
    sighold(SIGUSR1);
    fault();
    say_mask("behind a fault");
    return 0;
}
PROGRAM(divides_by_pinned_memory) {
    return faults_of_another_kind(SIGFPE, [](Pinned& pinned) { divide_by(reinterpret_cast<const int*>(pinned.page)); });
}
PROGRAM(copies_pinned_memory_behind_the_end_of_a_file) {
    return faults_of_another_kind(SIGBUS, [](Pinned& pinned) {
        const int file = memfd_create("cut", 0);
        say("cut", ftruncate(file, kPage));
        auto* const memory = static_cast<char*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
        copy_by_one_instruction(memory + kPage, pinned.page, 1000);
    });
}

}  // namespace
}  // namespace harm
