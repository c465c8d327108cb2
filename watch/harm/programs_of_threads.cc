// Programs whose threads are ended by others, are started by the C library, or get signals of real time.
#include <threads.h>
#include <csignal>
#include <ctime>

#include <thread>

#include "programs.h"

namespace harm {
namespace {

std::atomic<char*> page{nullptr};
std::atomic<int> times{0};

PROGRAM(threads_that_are_cancelled_in_a_touch) {
    constexpr int kThreads = 300;
    Pinned pinned;
    page = pinned.page;
    int cancelled = 0;
    for (int at = 0; at < kThreads; ++at) {
        times = 0;
        pthread_t thread{};
        pthread_create(
            &thread, nullptr,
            [](void*) -> void* {
                pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
                for (volatile char* const bytes = page;; bytes[3] = 1) {
                    ++times;
                }
            },
            nullptr);
        while (times < at % 7 + 1) {
            sched_yield();
        }
        pthread_cancel(thread);
        void* result = nullptr;
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED ? 1 : 0;
        static_cast<volatile char*>(page)[4] = 1;
    }
    say("cancelled", cancelled);
    return 0;
}
// No call of the driver is in the standard's list of those in which a thread ends.
PROGRAM(cancelled_before_it_registers) {
    Cuda cuda;
    static Cuda* its = nullptr;
    its = &cuda;
    pthread_t thread{};
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
            its->use();
            char* const memory = mapped(4 * kPage);
            pthread_cancel(pthread_self());
            its->pin(memory + 64, 2 * kPage);
            times = -1;
            for (;;) {
                pthread_testcancel();
            }
        },
        nullptr);
    pthread_join(thread, nullptr);
    say("registered", times == -1);
    char* const page_of_its_own = cuda.pinned(kPage);
    cuda.fetch(page_of_its_own, 64);
    cuda.wait();
    return 0;
}

// With the mask of who starts it.
PROGRAM(thread_of_c11_that_has_signals_blocked) {
    Pinned pinned;
    page = pinned.page;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    thrd_t thread{};
    const thrd_start_t run = [](void*) {
        static_cast<volatile char*>(page)[5] = 1;
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, nullptr, &mask);
        for (const int signal : {SIGSEGV, SIGTRAP, SIGSYS, SIGUSR1}) {
            say("blocked", sigismember(&mask, signal));
        }
        return -7;
    };
    const int started = thrd_create(&thread, run, nullptr);
    int result = 0;
    say("join", thrd_join(thread, &result));
    say("thread", started);
    say("result", result == -7);
    return 0;
}
PROGRAM(timer_that_starts_threads) {
    Pinned pinned;
    page = pinned.page;
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD;
    event.sigev_notify_function = [](sigval) {
        static_cast<volatile char*>(page)[5] = 1;
        ++times;
    };
    timer_t timer{};
    const itimerspec soon{{}, {0, 1'000'000}};
    say("made", timer_create(CLOCK_MONOTONIC, &event, &timer));
    say("set", timer_settime(timer, 0, &soon, nullptr));
    while (times == 0) {
        sched_yield();
    }
    return 0;
}

PROGRAM(signals_of_real_time_in_their_order) {
    static int next = 0;
    static int misplaced = 0;
    Pinned pinned;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) { misplaced += info->si_value.sival_int == next++ ? 0 : 1; };
    sigaction(SIGRTMIN, &action, nullptr);
    constexpr int kSignals = 1000;
    std::thread sends([receiver = pthread_self()] {
        for (int at = 0; at < kSignals; ++at) {
            sigval value{};
            value.sival_int = at;
            while (pthread_sigqueue(receiver, SIGRTMIN, value) != 0) {
                sched_yield();
            }
        }
    });
    const int file = open("/dev/zero", O_RDONLY);
    while (static_cast<volatile int&>(next) < kSignals) {
        static_cast<void>(!read(file, pinned.page, 8));
    }
    sends.join();
    say("misplaced", misplaced);
    return 0;
}

}  // namespace
}  // namespace harm
