// Named places where a test can hold a thread, so that it chooses the interleaving instead of hoping for it.
//
//   PausePoint hold("evict.picked");                    // test: arm
//   std::thread a([&] { manager.add_sequence(r); });    // runs up to the point and stops there
//   hold.await_arrival();                               // a is inside
//   ... run b ...
//   hold.release();  a.join();
//
// In a release build KVFIX_PAUSE("...") expands to nothing. Points with different names may be armed together; each
// holds only the first thread that arrives. Arm them before the threads start.
#pragma once

#ifdef KVFIX_PAUSE_POINTS

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvfix {

class PausePoint {
  public:
    explicit PausePoint(std::string name) : name_(std::move(name)) {
        const std::lock_guard guard(mutex());
        if (find(name_) != nullptr) {
            throw std::logic_error("the pause point is already armed: " + name_);
        }
        armed().push_back(this);
        ++armed_count();
    }
    PausePoint(const PausePoint&) = delete;
    PausePoint& operator=(const PausePoint&) = delete;
    ~PausePoint() {
        release();
        std::unique_lock lock(mutex());
        std::erase(armed(), this);
        --armed_count();
        changed().wait(lock, [this] { return !inside_; });
    }

    void await_arrival() {
        std::unique_lock lock(mutex());
        changed().wait(lock, [this] { return arrived_; });
    }
    void release() {
        const std::lock_guard guard(mutex());
        released_ = true;
        changed().notify_all();
    }

    static void reach(std::string_view name) {
        // Relaxed, and without a mutex: a point that is not armed must not order threads, or it would hide their races.
        if (armed_count().load(std::memory_order_relaxed) == 0) {
            return;
        }
        std::unique_lock lock(mutex());
        PausePoint* point = find(name);
        if (point == nullptr || point->arrived_) {
            return;
        }
        point->arrived_ = point->inside_ = true;
        changed().notify_all();
        changed().wait(lock, [point] { return point->released_; });
        point->inside_ = false;
        changed().notify_all();
    }

  private:
    static std::mutex& mutex() {
        static std::mutex instance;
        return instance;
    }
    static std::condition_variable& changed() {
        static std::condition_variable instance;
        return instance;
    }
    static std::vector<PausePoint*>& armed() {
        static std::vector<PausePoint*> instance;
        return instance;
    }
    static std::atomic<int>& armed_count() {
        static std::atomic<int> instance{0};
        return instance;
    }
    static PausePoint* find(std::string_view name) {
        const auto found = std::ranges::find(armed(), name, &PausePoint::name_);
        return found == armed().end() ? nullptr : *found;
    }

    std::string name_;
    bool arrived_ = false;
    bool released_ = false;
    bool inside_ = false;
};

}  // namespace kvfix

#define KVFIX_PAUSE(name) ::kvfix::PausePoint::reach(name)
#else
#define KVFIX_PAUSE(name) static_cast<void>(0)
#endif
