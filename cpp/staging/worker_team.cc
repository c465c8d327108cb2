#include "staging/worker_team.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>

namespace kvfix {
namespace {

constexpr unsigned kWorkersMax = 4;
constexpr unsigned kCoresPerWorker = 4;
// Long enough for a caller that ships one table after another, too short to be noticed between iterations.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kLooksPerClock = 32;
constexpr int kLooksBeforeYield = 1000;

void pause_briefly() {
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Cores that this process may run on: a rank that is bound to four has four.
unsigned cores_allowed() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return std::thread::hardware_concurrency();  // more cores than the set has room for
    }
    return static_cast<unsigned>(CPU_COUNT(&allowed));
}

constexpr std::uint64_t claims_of(std::uint32_t generation, std::uint32_t chunks) {
    return std::uint64_t{generation} << 32 | chunks;
}

}  // namespace

WorkerTeam::WorkerTeam(unsigned workers) : made_in_(getpid()) {
    threads_.reserve(workers);
    try {
        for (unsigned i = 0; i < workers; ++i) {
            threads_.emplace_back(&WorkerTeam::serve, this);
        }
    } catch (const std::system_error&) {  // no more threads to be had: the team is smaller, or none
    }
}

WorkerTeam::~WorkerTeam() {
    closing_.store(true, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    generation_.notify_all();
    const bool forked = getpid() != made_in_;
    for (std::thread& thread : threads_) {
        forked ? thread.detach()
               : thread.join();  // a fork copies no threads, and nobody promises that a join then returns
    }
}

std::shared_ptr<WorkerTeam> WorkerTeam::shared() {
    static std::mutex mutex;
    static std::weak_ptr<WorkerTeam> latest;
    const std::lock_guard guard(mutex);
    std::shared_ptr<WorkerTeam> team = latest.lock();
    if (team == nullptr) {
        team = std::make_shared<WorkerTeam>(std::min(kWorkersMax, cores_allowed() / kCoresPerWorker));
        latest = team;
    }
    return team;
}

void WorkerTeam::run_job(const Job& job) {
    if (threads_.empty() || job.chunks < 2 || busy_.test_and_set(std::memory_order_acquire)) {
        for (std::uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
            job.call(job.with, chunk);
        }
        return;
    }
    publish(job);
    take_chunks(generation_.load(std::memory_order_relaxed));
    for (int look = 0; ended_.load(std::memory_order_acquire) != job.chunks; ++look) {
        // Claimed by a worker that is at it; or by one that has lost its core, and may want this one.
        look < kLooksBeforeYield ? pause_briefly() : std::this_thread::yield();
    }
    busy_.clear(std::memory_order_release);
}

void WorkerTeam::publish(const Job& job) {
    job_ = job;
    ended_.store(0, std::memory_order_relaxed);
    const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    claims_.store(claims_of(generation, job.chunks), std::memory_order_release);
    generation_.store(generation, std::memory_order_release);
    wake_one();
}

// Waking costs the waker a call to the kernel: the caller wakes one, and each one that wakes the next.
void WorkerTeam::wake_one() { generation_.notify_one(); }

void WorkerTeam::take_chunks(std::uint32_t generation) {
    std::uint64_t claims = claims_.load(std::memory_order_acquire);
    while (claims > claims_of(generation, 0) && claims <= claims_of(generation, UINT32_MAX)) {
        if (!claims_.compare_exchange_weak(claims, claims - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            continue;
        }
        const Job& job = job_;  // stays until this chunk has been counted
        job.call(job.with, job.chunks - static_cast<std::uint32_t>(claims));
        ended_.fetch_add(1, std::memory_order_release);
        claims = claims_.load(std::memory_order_acquire);
    }
}

void WorkerTeam::serve() {
    for (std::uint32_t seen = 0;;) {
        seen = await_other_than(seen);
        if (closing_.load(std::memory_order_acquire)) {
            return;
        }
        wake_one();
        take_chunks(seen);
    }
}

std::uint32_t WorkerTeam::await_other_than(std::uint32_t generation) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int look = 0; look < kLooksPerClock; ++look) {
            if (const std::uint32_t now = generation_.load(std::memory_order_acquire); now != generation) {
                return now;
            }
            pause_briefly();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    parked_.fetch_add(1, std::memory_order_relaxed);
    generation_.wait(generation, std::memory_order_acquire);
    parked_.fetch_sub(1, std::memory_order_relaxed);
    return generation_.load(std::memory_order_acquire);
}

}  // namespace kvfix
