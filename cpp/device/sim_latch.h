// Opens once. It stands for one recording of an event, or for one gate. A thread that waits holds a share, so events
// and gates may be re-armed or forgotten while streams still wait for what they were. It carries the failure of the
// stream that recorded it: an event behind a copy that failed must not look like a copy that arrived.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace kvfix {

using SimFailure = std::optional<std::string>;

class SimLatch {
  public:
    void complete(SimFailure failure) {
        const std::lock_guard guard(mutex_);
        done_ = true;
        failure_ = std::move(failure);
        completed_.notify_all();
    }
    bool done() const {
        const std::lock_guard guard(mutex_);
        return done_;
    }
    SimFailure wait() const {
        std::unique_lock lock(mutex_);
        completed_.wait(lock, [this] { return done_; });
        return failure_;
    }

  private:
    mutable std::mutex mutex_;
    mutable std::condition_variable completed_;
    bool done_ = false;
    SimFailure failure_;
};

}  // namespace kvfix
