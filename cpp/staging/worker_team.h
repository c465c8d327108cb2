// A few native threads that help with work cut in chunks that do not depend on each other. The caller takes part and never waits
// for a worker that has not come yet: a worker that sleeps, or is gone after a fork, costs help, never correctness. Workers spin for
// a moment after a run, then park. They never touch Python.
//
//   team->run(chunks, [&](std::uint32_t chunk) { ... });   // each number below `chunks` once; all have ended on return
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvfix {

class WorkerTeam {
  public:
    explicit WorkerTeam(unsigned workers);
    WorkerTeam(const WorkerTeam&) = delete;
    WorkerTeam& operator=(const WorkerTeam&) = delete;
    // Not while anybody is in run().
    ~WorkerTeam();

    // The process's team, made by whoever asks first and gone with the last who holds it. A quarter of the cores that
    // this process may use, four at most: none on a small machine.
    static std::shared_ptr<WorkerTeam> shared();

    unsigned workers() const { return static_cast<unsigned>(threads_.size()); }

    // Of them, those that sleep or are about to.
    unsigned parked() const { return parked_.load(std::memory_order_relaxed); }

    // One run at a time: while the team is busy, a second caller does its work alone.
    template <class Work>
    void run(std::uint32_t chunks, const Work& work) {
        static_assert(std::is_nothrow_invocable_v<const Work&, std::uint32_t>, "a worker has nobody to throw to");
        const auto call = [](const void* with, std::uint32_t chunk) { (*static_cast<const Work*>(with))(chunk); };
        run_job({.call = call, .with = &work, .chunks = chunks});
    }

  private:
    struct Job {
        void (*call)(const void* with, std::uint32_t chunk) = nullptr;
        const void* with = nullptr;
        std::uint32_t chunks = 0;
    };

    void run_job(const Job& job);
    void publish(const Job& job);
    void wake_one();
    void take_chunks(std::uint32_t generation);
    void serve();
    std::uint32_t await_other_than(std::uint32_t generation);

    std::atomic_flag busy_;  // held by the thread in run()
    Job job_;                // written while no chunk is left; read by whoever has claimed one
    // Generation of the job, and its chunks that nobody has claimed. One word, so that a claim is good for this job only.
    std::atomic<std::uint64_t> claims_ = 0;
    std::atomic<std::uint32_t> ended_ = 0;       // chunks of the job
    std::atomic<std::uint32_t> generation_ = 0;  // workers park on it
    std::atomic<unsigned> parked_ = 0;
    std::atomic<bool> closing_ = false;
    const pid_t made_in_;
    std::vector<std::thread> threads_;
};

}  // namespace kvfix
