// TurnLock: one thread at a time, in order of arrival, and a holder may acquire it again.
#include "core/turn_lock.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvfix {
namespace {

constexpr std::chrono::seconds kLong{60};
constexpr std::chrono::duration<double> kAtOnce{0};

void await_queued(const TurnLock& lock, std::uint64_t threads) {
    while (lock.stats().queued != threads) {
        std::this_thread::yield();
    }
}

void elsewhere(const std::function<void()>& call) { std::thread(call).join(); }

TEST(TurnLock, AThreadThatHoldsItTakesItAgain) {
    TurnLock lock;
    ASSERT_TRUE(lock.try_acquire());
    ASSERT_TRUE(lock.try_acquire());
    ASSERT_TRUE(lock.acquire_within(kAtOnce));
    EXPECT_EQ(lock.stats().turns, 1U);
    lock.release();
    lock.release();
    elsewhere([&, holder = std::uint64_t{pthread_self()}] {
        EXPECT_FALSE(lock.try_acquire());
        EXPECT_EQ(lock.stats().holder, holder);
    });
    lock.release();
    EXPECT_EQ(lock.stats().holder, 0U);
    elsewhere([&] {
        EXPECT_TRUE(lock.try_acquire());
        lock.release();
    });
}

// The threads that hold it and wait for it are its parent's alone.
TEST(TurnLock, AChildHasItsTurnAtOnceAndEndsTheLock) {
    auto lock = std::make_unique<TurnLock>();
    std::latch held(1);
    std::latch over(1);
    std::thread holds([&] {
        ASSERT_TRUE(lock->try_acquire());
        held.count_down();
        over.wait();
        lock->release();
    });
    held.wait();
    std::thread waits([&] {
        ASSERT_TRUE(lock->acquire_within(kLong));
        lock->release();
    });
    await_queued(*lock, 1);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        bool has_its_turn = lock->acquire_within(kAtOnce);
        lock->release();
        has_its_turn &= lock->stats().depth == 0;
        lock.reset();
        _exit(has_its_turn ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    over.count_down();
    holds.join();
    waits.join();
}

TEST(TurnLock, OnlyTheHolderReleases) {
    TurnLock lock;
    EXPECT_THROW(lock.release(), std::logic_error);
    ASSERT_TRUE(lock.try_acquire());
    elsewhere([&] { EXPECT_THROW(lock.release(), std::logic_error); });
    lock.release();
    EXPECT_THROW(lock.release(), std::logic_error);
}

TEST(TurnLock, WhoCameFirstIsServedFirst) {
    TurnLock lock;
    std::vector<std::size_t> served;  // written under the lock
    std::vector<std::thread> threads;
    ASSERT_TRUE(lock.try_acquire());
    for (std::size_t number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            ASSERT_TRUE(lock.acquire_within(kLong));
            served.push_back(number);
            lock.release();
        });
        await_queued(lock, number + 1);
    }
    lock.release();
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(served, (std::vector<std::size_t>{0, 1, 2, 3}));
    EXPECT_EQ(lock.stats().waits, 4U);
    EXPECT_GT(lock.stats().wait_us, 0.0);
}

TEST(TurnLock, NobodyOvertakesAQueue) {
    TurnLock lock;
    ASSERT_TRUE(lock.try_acquire());
    std::thread waiting([&] {
        ASSERT_TRUE(lock.acquire_within(kLong));
        EXPECT_FALSE(lock.stats().queued);
        lock.release();
    });
    await_queued(lock, 1);
    elsewhere([&] { EXPECT_FALSE(lock.try_acquire()); });
    lock.release();
    waiting.join();
}

#ifdef KVFIX_PAUSE_POINTS
// The holder has gone, and the thread whose turn it is has not woken up yet.
TEST(TurnLock, NobodyOvertakesTheOneWhoseTurnItIs) {
    TurnLock lock;
    PausePoint queued("turn.queued");
    ASSERT_TRUE(lock.try_acquire());
    std::thread waiting([&] {
        ASSERT_TRUE(lock.acquire_within(kLong));
        lock.release();
    });
    queued.await_arrival();
    lock.release();
    const auto overtakes = [&](bool taken) {
        if (taken) {
            lock.release();
        }
        return taken;
    };
    EXPECT_FALSE(overtakes(lock.try_acquire()));
    EXPECT_FALSE(overtakes(lock.acquire_within(kAtOnce)));
    queued.release();
    waiting.join();
    EXPECT_EQ(lock.stats().queued, 0U);
}
#endif

TEST(TurnLock, WhoGivesUpLeavesTheQueueToTheNext) {
    TurnLock lock;
    ASSERT_TRUE(lock.try_acquire());
    elsewhere([&] { EXPECT_FALSE(lock.acquire_within(kAtOnce)); });
    EXPECT_EQ(lock.stats().queued, 0U);
    std::thread next([&] {
        ASSERT_TRUE(lock.acquire_within(kLong));
        lock.release();
    });
    await_queued(lock, 1);
    lock.release();
    next.join();
}

TEST(TurnLock, OneThreadAtATime) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 2000;
    TurnLock lock;
    long count = 0;  // plain: a race would lose increments, and ThreadSanitizer would see it
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number) {
        threads.emplace_back([&] {
            for (int round = 0; round < kRounds; ++round) {
                ASSERT_TRUE(lock.acquire_within(kLong));
                ASSERT_TRUE(lock.try_acquire());
                ++count;
                lock.release();
                lock.release();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(count, kThreads * kRounds);
    EXPECT_EQ(lock.stats().turns, static_cast<std::uint64_t>(kThreads) * kRounds);
}

}  // namespace
}  // namespace kvfix
