// FairMutex: callers are served in order of arrival, so that no caller in a loop keeps others out.
#include "core/fair_mutex.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "core/manager_mutex.h"
#include "core/pause_point.h"

namespace kvfix {
namespace {

// Starts a thread that asks for a mutex that is held. Returns once the thread has its place in the queue.
template <class Call>
std::thread in_place(Call call) {
    PausePoint asked("lock.contended");
    std::thread caller(call);
    asked.await_arrival();
    return caller;
}

// More callers than the mutex has words to sleep on, so some of them share one.
TEST(FairMutex, AllWhoWaitComeInOrderAndBeforeAHolderThatAsksAgainAtOnce) {
    constexpr int kWaiters = 20;
    FairMutex mutex;
    std::vector<int> served;  // written under the lock
    std::vector<std::thread> waiters;
    mutex.lock();
    for (int number = 0; number < kWaiters; ++number) {
        waiters.push_back(in_place([&, number] {
            const std::lock_guard guard(mutex);
            served.push_back(number);
        }));
    }
    mutex.unlock();
    mutex.lock();
    served.push_back(kWaiters);
    mutex.unlock();
    for (std::thread& waiter : waiters) {
        waiter.join();
    }
    std::vector<int> in_order(kWaiters + 1);
    std::iota(in_order.begin(), in_order.end(), 0);
    EXPECT_EQ(served, in_order);
}

TEST(FairMutex, OneThreadAtATime) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 2000;
    FairMutex mutex;
    long count = 0;  // plain: a race would lose increments, and ThreadSanitizer would see it
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number) {
        threads.emplace_back([&] {
            for (int round = 0; round < kRounds; ++round) {
                const std::lock_guard guard(mutex);
                ++count;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(count, kThreads * kRounds);
}

TEST(FairMutex, ATryTakesAFreeMutexAndNoOther) {
    FairMutex mutex;
    ASSERT_TRUE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock());
    mutex.unlock();
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
}

// The mutex is the waiter's from the moment of the hand-over, though it may not have woken up yet.
TEST(FairMutex, ATryOvertakesNobodyWhoWaits) {
    FairMutex mutex;
    PausePoint served("served");
    mutex.lock();
    std::thread waiter = in_place([&] {
        const std::lock_guard guard(mutex);
        KVFIX_PAUSE("served");
    });
    EXPECT_FALSE(mutex.try_lock());
    mutex.unlock();
    EXPECT_FALSE(mutex.try_lock());
    served.release();
    waiter.join();
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
}

int status_of_fork(int (*child_does)()) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(child_does());
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

// A fork takes every lock. The caller that waits behind it does not exist in the child, where the next fork must not
// wait for that caller's turn.
TEST(ManagerMutex, AChildDoesNotWaitForCallersThatItsParentAloneHas) {
    ManagerMutex mutex;
    int status = -1;
    mutex.lock();
    std::thread fork_first =
        in_place([&] { status = status_of_fork([] { return status_of_fork([] { return 0; }); }); });
    std::thread call_next = in_place([&] { const std::lock_guard guard(mutex); });
    mutex.unlock();
    fork_first.join();
    call_next.join();
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvfix
