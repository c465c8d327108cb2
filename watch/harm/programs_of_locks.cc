// Programs whose locks lie in pinned memory, beside what a copy uses: the kernel looks at a lock when a thread waits for
// it, when it wakes another, and when a thread that has it ends.
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>

#include <thread>
#include <utility>

#include "programs.h"

namespace harm {
namespace {

// It waits for a lock in the kernel when it has been made.
class Waiter {
  public:
    template <typename Work>
    explicit Waiter(Work work)
        : thread_([this, work] {
              id_ = static_cast<int>(syscall(SYS_gettid));
              work();
          }) {
        while (id_ == 0) {
            sched_yield();
        }
        until_blocked(id_, SYS_futex);
    }
    ~Waiter() { thread_.join(); }

  private:
    std::atomic<int> id_{0};
    std::thread thread_;
};

// One thread waits, and is woken.
template <typename Wait, typename Wake>
void woken(Wait wait, Wake wake) {
    long waited = -1;
    {
        const Waiter waits([&] { waited = wait(); });
        say("wake", wake());
    }
    say("waited", waited);
}

timespec in_a_moment(clockid_t clock = CLOCK_REALTIME) {
    timespec time{};
    clock_gettime(clock, &time);
    time.tv_nsec += 50'000'000;
    time.tv_sec += time.tv_nsec / 1'000'000'000;
    time.tv_nsec %= 1'000'000'000;
    return time;
}

// Behind one another, from the beginning of the page on.
struct Locks : Pinned {
    template <typename T>
    T& make() {
        at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
        return *new (page + std::exchange(at, at + sizeof(T))) T{};
    }
    std::size_t at = 0;
};

struct Kind {
    const char* name;
    int type, protocol, shared, robust;
};
constexpr std::array kKinds{
    Kind{"normal", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 0},
    Kind{"recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, 0, 0},
    Kind{"checked", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, 0, 0},
    Kind{"adaptive", PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_PRIO_NONE, 0, 0},
    Kind{"shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 0},
    Kind{"lends its priority", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 0},
    Kind{"lends its priority, shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 1, 0},
    Kind{"robust", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 1},
    Kind{"robust, lends its priority", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 1},
};

void init(pthread_mutex_t& mutex, const Kind& kind) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, kind.type);
    pthread_mutexattr_setprotocol(&how, kind.protocol);
    pthread_mutexattr_setpshared(&how, kind.shared != 0 ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE);
    pthread_mutexattr_setrobust(&how, kind.robust != 0 ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
    say(kind.name, pthread_mutex_init(&mutex, &how));
}

PROGRAM(waits_for_mutexes) {
    Locks locks;
    auto& time = locks.make<timespec>();
    for (const Kind& kind : kKinds) {
        auto& mutex = locks.make<pthread_mutex_t>();
        init(mutex, kind);
        say("lock", pthread_mutex_lock(&mutex));
        woken([&] { return pthread_mutex_lock(&mutex) + pthread_mutex_unlock(&mutex); },
              [&] { return pthread_mutex_unlock(&mutex); });
        say("lock", pthread_mutex_lock(&mutex));
        std::thread([&] {
            time = in_a_moment();
            say("in time", pthread_mutex_timedlock(&mutex, &time));
            time = in_a_moment(CLOCK_MONOTONIC);
            say("in time", pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &time));
            say("try", pthread_mutex_trylock(&mutex));
        }).join();
        say("unlock", pthread_mutex_unlock(&mutex));
    }
    return 0;
}

PROGRAM(waits_for_conditions) {
    Locks locks;
    auto& mutex = locks.make<pthread_mutex_t>();
    auto& time = locks.make<timespec>();
    for (const int shared : {PTHREAD_PROCESS_PRIVATE, PTHREAD_PROCESS_SHARED}) {
        auto& condition = locks.make<pthread_cond_t>();
        auto& told = locks.make<int>();
        pthread_condattr_t how;
        pthread_condattr_init(&how);
        pthread_condattr_setpshared(&how, shared);
        pthread_cond_init(&condition, &how);
        for (const auto wake : {pthread_cond_signal, pthread_cond_broadcast}) {
            told = 0;
            woken(
                [&] {
                    int waited = pthread_mutex_lock(&mutex);
                    while (told == 0) {
                        waited += pthread_cond_wait(&condition, &mutex);
                    }
                    return waited + pthread_mutex_unlock(&mutex);
                },
                [&] {
                    pthread_mutex_lock(&mutex);
                    told = 1;
                    return wake(&condition) + pthread_mutex_unlock(&mutex);
                });
        }
        pthread_mutex_lock(&mutex);
        time = in_a_moment();
        say("in time", pthread_cond_timedwait(&condition, &mutex, &time));
        time = in_a_moment(CLOCK_MONOTONIC);
        say("in time", pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &time));
        pthread_mutex_unlock(&mutex);
        say("destroy", pthread_cond_destroy(&condition));
    }
    return 0;
}

PROGRAM(waits_for_locks_of_readers) {
    Locks locks;
    auto& time = locks.make<timespec>();
    for (const int shared : {PTHREAD_PROCESS_PRIVATE, PTHREAD_PROCESS_SHARED}) {
        auto& lock = locks.make<pthread_rwlock_t>();
        pthread_rwlockattr_t how;
        pthread_rwlockattr_init(&how);
        pthread_rwlockattr_setpshared(&how, shared);
        pthread_rwlock_init(&lock, &how);
        const auto waits_for = [&](auto* takes, auto* waits) {
            say("has", takes(&lock));
            woken([&] { return waits(&lock) + pthread_rwlock_unlock(&lock); },
                  [&] { return pthread_rwlock_unlock(&lock); });
        };
        waits_for(pthread_rwlock_wrlock, pthread_rwlock_rdlock);
        waits_for(pthread_rwlock_wrlock, pthread_rwlock_wrlock);
        waits_for(pthread_rwlock_rdlock, pthread_rwlock_wrlock);
        pthread_rwlock_wrlock(&lock);
        std::thread([&] {
            time = in_a_moment();
            say("in time", pthread_rwlock_timedrdlock(&lock, &time));
            say("in time", pthread_rwlock_timedwrlock(&lock, &time));
            time = in_a_moment(CLOCK_MONOTONIC);
            say("in time", pthread_rwlock_clockrdlock(&lock, CLOCK_MONOTONIC, &time));
            say("in time", pthread_rwlock_clockwrlock(&lock, CLOCK_MONOTONIC, &time));
        }).join();
        say("unlock", pthread_rwlock_unlock(&lock));
    }
    return 0;
}

PROGRAM(waits_for_semaphores) {
    Locks locks;
    auto& time = locks.make<timespec>();
    for (const int shared : {0, 1}) {
        auto& semaphore = locks.make<sem_t>();
        sem_init(&semaphore, shared, 0);
        woken([&] { return sem_wait(&semaphore); }, [&] { return sem_post(&semaphore); });
        time = in_a_moment();
        say("in time", sem_timedwait(&semaphore, &time));
        time = in_a_moment(CLOCK_MONOTONIC);
        say("in time", sem_clockwait(&semaphore, CLOCK_MONOTONIC, &time));
    }
    return 0;
}

PROGRAM(waits_for_barriers) {
    Locks locks;
    auto& barrier = locks.make<pthread_barrier_t>();
    pthread_barrier_init(&barrier, nullptr, 2);
    for (int round = 0; round < 2; ++round) {
        std::atomic<int> serial{0};
        {
            const Waiter waits([&] { serial += pthread_barrier_wait(&barrier); });
            serial += pthread_barrier_wait(&barrier);
        }
        say("one of them", serial == PTHREAD_BARRIER_SERIAL_THREAD ? 1 : 0);
    }
    say("destroy", pthread_barrier_destroy(&barrier));
    return 0;
}

PROGRAM(waits_for_once) {
    static std::atomic<int> goes_on{0};
    Locks locks;
    auto& once = locks.make<pthread_once_t>();
    auto& other = locks.make<once_flag>();
    const auto runs = [] {
        while (goes_on == 0) {
            sched_yield();
        }
        std::printf("once\n");
    };
    const auto both = [&](auto call) {
        goes_on = 0;
        std::atomic<bool> runs_now{false};
        std::thread first([&] {
            runs_now = true;
            call();
        });
        while (!runs_now) {
            sched_yield();
        }
        usleep(20'000);  // it has begun
        const Waiter second(call);
        goes_on = 1;
        first.join();
    };
    both([&] { pthread_once(&once, runs); });
    both([&] { call_once(&other, runs); });
    return 0;
}

PROGRAM(waits_for_locks_of_c11) {
    Locks locks;
    auto& mutex = locks.make<mtx_t>();
    auto& condition = locks.make<cnd_t>();
    auto& told = locks.make<int>();
    auto& time = locks.make<timespec>();
    mtx_init(&mutex, mtx_timed);
    cnd_init(&condition);
    mtx_lock(&mutex);
    woken([&] { return mtx_lock(&mutex) + mtx_unlock(&mutex); }, [&] { return mtx_unlock(&mutex); });
    for (const auto wake : {cnd_signal, cnd_broadcast}) {
        told = 0;
        woken(
            [&] {
                int waited = mtx_lock(&mutex);
                while (told == 0) {
                    waited += cnd_wait(&condition, &mutex);
                }
                return waited + mtx_unlock(&mutex);
            },
            [&] {
                mtx_lock(&mutex);
                told = 1;
                return wake(&condition) + mtx_unlock(&mutex);
            });
    }
    mtx_lock(&mutex);
    time = in_a_moment();
    say("in time", cnd_timedwait(&condition, &mutex, &time));
    std::thread([&] {
        time = in_a_moment();
        say("in time", mtx_timedlock(&mutex, &time));
    }).join();
    mtx_unlock(&mutex);
    cnd_destroy(&condition);
    return 0;
}

PROGRAM(waits_for_atomics) {
    Locks locks;
    auto& word = locks.make<std::atomic<int>>();
    {
        const Waiter waits([&] {
            word.wait(0);
            std::printf("word %d\n", word.load());
        });
        word = 1;
        word.notify_one();
    }
    auto& flag = locks.make<std::atomic_flag>();
    const Waiter waits([&] {
        flag.wait(false);
        std::printf("flag %d\n", flag.test());
    });
    flag.test_and_set();
    flag.notify_all();
    return 0;
}

// Each operation, by a function that makes a call into the kernel.
template <typename Make>
int futexes(Make make) {
    Locks locks;
    auto& word = locks.make<int>();
    auto& other = locks.make<int>();
    const auto futex = [&](int& at, long operation, long value = 0, long more = 0, int* second = nullptr,
                           long last = 0) {
        return make(SYS_futex, address(&at), operation, value, more, address(second), last);
    };
    for (const long flag : {static_cast<long>(FUTEX_PRIVATE_FLAG), 0L}) {
        const auto wait = [&] { return futex(word, FUTEX_WAIT | flag, 0); };
        const auto wake = [&] { return futex(word, FUTEX_WAKE | flag, 1); };
        word = other = 0;
        woken(wait, wake);
        woken([&] { return futex(word, FUTEX_WAIT_BITSET | flag, 0, 0, nullptr, 2); },
              [&] { return futex(word, FUTEX_WAKE_BITSET | flag, 1, 0, nullptr, 2); });
        woken(wait, [&] {
            say("requeue", futex(word, FUTEX_CMP_REQUEUE | flag, 0, 1, &other, 0));
            return futex(other, FUTEX_WAKE | flag, 1);
        });
        woken(wait, [&] { return futex(word, FUTEX_WAKE_OP | flag, 1, 0, &other, FUTEX_OP(FUTEX_OP_ADD, 7, 0, 1)); });
        say("added", other);
        word = 0;
        say("lock", futex(word, FUTEX_LOCK_PI | flag));
        woken([&] { return futex(word, FUTEX_LOCK_PI | flag) + futex(word, FUTEX_UNLOCK_PI | flag); },
              [&] { return futex(word, FUTEX_UNLOCK_PI | flag); });
        word = 1;
        const long changed = wait();
        say("changed", changed == -1 ? errno : -changed);  // a raw call leaves errno alone
    }
    return 0;
}
PROGRAM(waits_for_futexes) {
    return futexes([](auto... arguments) { return syscall(arguments...); });
}
PROGRAM(waits_for_futexes_by_a_raw_call) {
    return futexes([](auto... arguments) { return raw(arguments...); });
}

// A thread, or a process, that ends while it has a lock leaves it to others.
PROGRAM(robust_mutexes_in_pinned_memory) {
    Locks locks;
    for (const Kind& kind : kKinds) {
        if (kind.robust == 0) {
            continue;
        }
        auto& mutex = locks.make<pthread_mutex_t>();
        init(mutex, kind);
        std::thread([&] { pthread_mutex_lock(&mutex); }).join();
        say("dead", pthread_mutex_lock(&mutex));
        say("consistent", pthread_mutex_consistent(&mutex));
        say("unlock", pthread_mutex_unlock(&mutex));
    }
    return 0;
}

// A thread waits already when its lock's memory is registered, and has to wait once more when it is told.
PROGRAM(waits_for_what_is_registered_meanwhile) {
    struct Both {
        pthread_mutex_t mutex;
        pthread_cond_t condition;
        bool told;
    };
    auto& both = *reinterpret_cast<Both*>(mapped(kPage));
    Cuda cuda;
    woken(
        [&] {
            int waited = pthread_mutex_lock(&both.mutex);
            while (!both.told) {
                waited += pthread_cond_wait(&both.condition, &both.mutex);
            }
            return waited + pthread_mutex_unlock(&both.mutex);
        },
        [&] {
            cuda.pin(&both, kPage);
            cuda.close();
            cuda.fetch(reinterpret_cast<char*>(&both) + 2048, 512);
            pthread_mutex_lock(&both.mutex);
            both.told = true;
            const int result = pthread_cond_signal(&both.condition);
            usleep(50'000);  // it waits for the mutex
            return result + pthread_mutex_unlock(&both.mutex);
        });
    cuda.finish();
    return 0;
}

char* shared_memory() { return mapped(kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS); }
PROGRAM(mutex_that_two_processes_share) {
    char* const page = shared_memory();
    auto& mutex = *reinterpret_cast<pthread_mutex_t*>(page);
    auto& child_waits = *reinterpret_cast<std::atomic<int>*>(page + 64);
    init(mutex, {"shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 0});
    pthread_mutex_lock(&mutex);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        child_waits = 1;
        _exit(pthread_mutex_lock(&mutex) + 7);
    }
    while (child_waits == 0) {
        sched_yield();
    }
    usleep(50'000);  // it waits
    Cuda cuda;
    cuda.pin(page, kPage);
    cuda.close();
    cuda.fetch(page + 2048, 512);
    say("unlock", pthread_mutex_unlock(&mutex));
    int status = 0;
    waitpid(child, &status, 0);
    say("child", WEXITSTATUS(status));
    cuda.finish();
    return 0;
}
PROGRAM(process_that_is_killed_with_a_robust_mutex) {
    char* const page = shared_memory();
    auto& mutex = *reinterpret_cast<pthread_mutex_t*>(page);
    init(mutex, {"robust", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 1});
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        Cuda cuda;
        cuda.pin(page, kPage);
        pthread_mutex_lock(&mutex);
        cuda.close();
        cuda.fetch(page + 2048, 512);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    say("killed", WTERMSIG(status));
    const timespec time = in_a_moment();
    say("dead", pthread_mutex_timedlock(&mutex, &time));
    return 0;
}
// Its list is the program's own, and the kernel walks it when the thread ends.
PROGRAM(robust_list_in_pinned_memory) {
    struct Lock {
        robust_list next;
        std::atomic<unsigned> word;
    };
    Locks locks;
    auto& lock = locks.make<Lock>();
    std::thread([&] {
        static thread_local robust_list_head head;
        head.list.next = &lock.next;
        lock.next.next = &head.list;
        head.futex_offset = offsetof(Lock, word);
        lock.word = static_cast<unsigned>(syscall(SYS_gettid));
        say("list", syscall(SYS_set_robust_list, &head, sizeof head));
    }).join();
    say("dead", (lock.word & FUTEX_OWNER_DIED) != 0);
    return 0;
}

}  // namespace
}  // namespace harm
