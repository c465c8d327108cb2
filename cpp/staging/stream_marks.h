// Events behind the work of streams, one for each: a writer that waits for them may overwrite what was read up to there.
// Recording again moves a stream's mark behind its newer work as well. Not for two threads at once.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "device/device.h"
#include "process/home_process.h"

namespace kvfix {

class StreamMarks {
  public:
    StreamMarks() = default;
    StreamMarks(const StreamMarks&) = delete;
    StreamMarks& operator=(const StreamMarks&) = delete;
    ~StreamMarks() {
        for (const Mark& mark : marks_) {
            try {
                if (!home_.left()) {  // else the events are the parent's
                    mark.device->destroy_event(mark.event);
                }
            } catch (const DeviceError&) {
            }
        }
    }

    void record(const std::shared_ptr<Device>& device, StreamHandle stream) {
        Mark& mark = of(device, stream);
        device->record(mark.event, stream);
        mark.pending = true;
    }

    // Whether every stream is past its mark. Throws if the work before one has failed, and again when it is asked again.
    bool done() {
        for (Mark& mark : marks_) {
            mark.pending = mark.pending && !mark.device->done(mark.event);
            if (mark.pending) {
                return false;
            }
        }
        return true;
    }

    // Returns how long it took until they were, or 0 if nothing had to be waited for. Throws as done() does.
    std::chrono::nanoseconds wait() {
        if (done()) {
            return {};
        }
        const auto begin = std::chrono::steady_clock::now();
        for (Mark& mark : marks_) {
            if (mark.pending) {
                mark.device->wait(mark.event);
                mark.pending = false;
            }
        }
        return std::chrono::steady_clock::now() - begin;
    }

    // Every stream that has a mark.
    std::vector<StreamHandle> streams() const {
        std::vector<StreamHandle> found;
        found.reserve(marks_.size());
        for (const Mark& mark : marks_) {
            found.push_back(mark.stream);
        }
        return found;
    }

  private:
    struct Mark {
        std::shared_ptr<Device> device;
        StreamHandle stream;
        EventHandle event;
        bool pending = false;  // as far as is known without asking the device
    };

    // A thread has a few streams, so they are looked through.
    Mark& of(const std::shared_ptr<Device>& device, StreamHandle stream) {
        for (Mark& mark : marks_) {
            if (mark.stream.value == stream.value && mark.device == device) {
                return mark;
            }
        }
        marks_.reserve(marks_.size() + 1);  // an event that was made has a place
        return marks_.emplace_back(Mark{.device = device, .stream = stream, .event = device->create_event()});
    }

    const HomeProcess home_;
    std::vector<Mark> marks_;
};

}  // namespace kvfix
