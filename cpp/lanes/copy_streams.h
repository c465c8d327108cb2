// The streams of a lane. A DMA engine that works through one stream pauses between two small copies; with several it has always
// something to do.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"

namespace kvfix {

class CopyStreams {
  public:
    CopyStreams(std::shared_ptr<Device> device, std::size_t count) : device_(std::move(device)), count_(count) {
        create();
    }
    CopyStreams(const CopyStreams&) = delete;
    CopyStreams& operator=(const CopyStreams&) = delete;
    ~CopyStreams() { destroy(); }

    std::size_t count() const { return count_; }
    StreamHandle operator[](std::size_t index) const { return streams_[index]; }
    // Others in their place: an error breaks a stream for good. Throws DeviceError; there are none then.
    void renew() {
        destroy();
        create();
    }

  private:
    void create() {
        try {
            while (streams_.size() < count_) {
                streams_.push_back(device_->create_stream());
            }
        } catch (...) {
            destroy();
            throw;
        }
    }
    void destroy() {
        for (const StreamHandle stream : std::exchange(streams_, {})) {
            try {
                device_->destroy_stream(stream);
            } catch (const DeviceError&) {  // its caller was informed about the transfer
            }
        }
    }

    const std::shared_ptr<Device> device_;
    const std::size_t count_;
    std::vector<StreamHandle> streams_;
};

}  // namespace kvfix
