// One stream of the simulated device: a thread that runs operations later, in the order in which they were enqueued.
// Before each it spins for a seeded number of turns, so that the CPU normally runs ahead. No time is measured anywhere.
//
// The first operation that fails breaks the stream for good, as an error does on a GPU. Work behind it is skipped,
// because its input may be missing. Events behind it complete with the failure, and every later call on the stream
// throws it. Gates and events keep their order on a broken stream, and nothing hangs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <variant>

#include "device/sim_latch.h"

namespace kvfix {

class SimStream {
  public:
    using Work = std::function<void()>;  // throws to fail
    struct Signal {
        std::shared_ptr<SimLatch> latch;
    };
    struct Await {
        std::shared_ptr<SimLatch> latch;
    };
    using Operation = std::variant<Work, Signal, Await>;

    SimStream(std::uint64_t number, std::uint64_t seed);  // throws DeviceError if no thread can be started
    SimStream(const SimStream&) = delete;
    SimStream& operator=(const SimStream&) = delete;
    ~SimStream();  // runs what is still queued, so gates must be open, or another thread must open them

    void enqueue(Operation operation);
    // Blocks until everything enqueued before the call has run.
    void synchronize();

  private:
    void run();
    void lag();
    void execute(const Operation& operation);
    void perform(const Work& work);
    void perform(const Signal& signal);
    void perform(const Await& await);
    SimFailure failure() const;
    void fail(const std::string& why);
    void throw_if_failed() const;  // with mutex_ held

    const std::uint64_t number_;
    std::mt19937_64 random_;  // used by the thread alone

    mutable std::mutex mutex_;  // guards everything below; never held while an operation runs
    std::condition_variable changed_;
    std::deque<Operation> queue_;
    std::uint64_t enqueued_ = 0;
    std::uint64_t finished_ = 0;
    bool stopping_ = false;
    SimFailure failure_;

    std::thread thread_;  // last, so that it starts when everything else exists
};

}  // namespace kvfix
