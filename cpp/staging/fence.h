// Marks the end of one use of a buffer by the device. A fence has an event of its own, so no event ever stands for two
// uses: recording re-arms an event, and a wait for the first use would become a wait for the second.
#pragma once

#include <memory>
#include <utility>

#include "core/check.h"
#include "device/device.h"

namespace kvfix {

class Fence {
  public:
    explicit Fence(std::shared_ptr<Device> device) : device_(std::move(device)), event_(device_->create_event()) {}
    Fence(const Fence&) = delete;
    Fence& operator=(const Fence&) = delete;
    ~Fence() {
        try {
            device_->destroy_event(event_);
        } catch (const DeviceError&) {
        }
    }

    // The use that this fence ends includes everything on the stream so far.
    void raise(StreamHandle stream) {
        check(!pending_, "a fence is raised while its last use is pending");
        device_->record(event_, stream);
        pending_ = true;
    }
    // Whether it may still lie ahead, as far as is known without asking the device.
    bool pending() const { return pending_; }
    bool passed() {
        pending_ = pending_ && !device_->done(event_);
        return !pending_;
    }
    void wait() {
        if (pending_) {
            device_->wait(event_);
            pending_ = false;
        }
    }
    EventHandle event() const { return event_; }

  private:
    std::shared_ptr<Device> device_;
    EventHandle event_;
    bool pending_ = false;
};

}  // namespace kvfix
