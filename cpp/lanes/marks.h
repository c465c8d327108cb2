// Points in a stream that transfers wait for. Every mark has an event of its own for as long as the mark is held, so a later mark
// never moves an earlier one; then the event is used again. Their number is bounded.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "process/home_process.h"

namespace kvfix {

class Marks : public std::enable_shared_from_this<Marks> {
  public:
    // A share that comes from Python is one of these too, and not a reference to Python's object: a lane's thread lets
    // go of the last one, without the GIL.
    class Mark : public std::enable_shared_from_this<Mark> {
      public:
        Mark(std::shared_ptr<Marks> owner, EventHandle event) : owner_(std::move(owner)), event_(event) {}
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;
        ~Mark() { owner_->give_back(event_); }
        EventHandle event() const { return event_; }

      private:
        std::shared_ptr<Marks> owner_;
        EventHandle event_;
    };

    Marks(std::shared_ptr<Device> device, std::size_t marks_max) : device_(std::move(device)), marks_max_(marks_max) {}
    Marks(const Marks&) = delete;
    Marks& operator=(const Marks&) = delete;
    ~Marks() {
        for (const EventHandle event : spare_) {
            try {
                device_->destroy_event(event);
            } catch (const DeviceError&) {  // there is nobody left to inform
            }
        }
    }

    // Everything on the stream so far is before the mark.
    std::shared_ptr<Mark> set(StreamHandle stream) {
        auto mark = std::make_shared<Mark>(shared_from_this(), take());
        device_->record(mark->event(), stream);
        return mark;
    }
    std::size_t marks_max() const { return marks_max_; }
    std::size_t created() const {
        const std::lock_guard guard(mutex_);
        return created_;
    }

  private:
    EventHandle take() {
        const std::lock_guard guard(mutex_);
        if (!spare_.empty()) {
            const EventHandle event = spare_.back();
            spare_.pop_back();
            return event;
        }
        if (created_ == marks_max_) {
            throw DeviceError("all " + std::to_string(marks_max_) +
                              " marks are held by transfers that have not begun; is the copy stream stuck?");
        }
        const EventHandle event = device_->create_event();
        ++created_;
        return event;
    }
    void give_back(EventHandle event) {
        if (home_.left()) {  // a thread that fork() did not copy may have the lock
            return;
        }
        const std::lock_guard guard(mutex_);
        spare_.push_back(event);
    }

    const HomeProcess home_;
    const std::shared_ptr<Device> device_;
    const std::size_t marks_max_;
    mutable std::mutex mutex_;  // guards what follows
    std::size_t created_ = 0;
    std::vector<EventHandle> spare_;
};

using MarkPtr = std::shared_ptr<Marks::Mark>;

}  // namespace kvfix
