// What the checks share. Each group is one file. A failure is printed and counted, and the rest continues.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "staging/pinned_memory.h"

namespace kvfix {

class Checks {
  public:
    explicit Checks(std::shared_ptr<Device> opened) : device(std::move(opened)) {}

    void expect(bool ok, const std::string& what);
    // Printed at once, so that it shows where a check that hangs has stopped.
    void step(const std::string& what) const;
    // Checks that the call throws a DeviceError that contains `part`.
    void expect_error(const std::string& part, const std::function<void()>& call);
    int made() const { return made_; }
    int failed() const { return failed_; }

    const std::shared_ptr<Device> device;

  private:
    int made_ = 0;
    int failed_ = 0;
};

// A stream that is destroyed along with this object.
class OwnStream {
  public:
    explicit OwnStream(std::shared_ptr<Device> device) : device_(std::move(device)), handle(device_->create_stream()) {}
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    ~OwnStream() { device_->destroy_stream(handle); }

  private:
    std::shared_ptr<Device> device_;

  public:
    const StreamHandle handle;
};

// The same elements twice: on the host for the reference, and in device memory of exactly their size for the kernel.
// `skew` elements in front spoil the alignment.
template <typename T>
class Twin {
  public:
    Twin(const std::shared_ptr<Device>& device, std::vector<T> values, std::size_t skew = 0)
        : device_(device),
          values_(std::move(values)),
          skew_(skew),
          pinned_(device, bytes()),
          memory_(device, bytes() + skew * sizeof(T)) {
        std::memcpy(pinned_.data(), values_.data(), bytes());
        device_->copy({address(), pinned_.address(), bytes()}, {});
        device_->synchronize({});
    }

    T* host() { return values_.data(); }
    T* on_device() { return reinterpret_cast<T*>(address()); }
    std::uintptr_t address() const { return memory_.address() + skew_ * sizeof(T); }
    std::size_t bytes() const { return values_.size() * sizeof(T); }
    // The elements after everything on `stream`.
    bool same(StreamHandle stream) {
        device_->copy({pinned_.address(), address(), bytes()}, stream);
        device_->synchronize(stream);
        return std::memcmp(pinned_.data(), values_.data(), bytes()) == 0;
    }

  private:
    std::shared_ptr<Device> device_;
    std::vector<T> values_;
    std::size_t skew_;
    PinnedMemory pinned_;
    DeviceMemory memory_;
};

void check_copies(Checks& checks);
void check_errors(Checks& checks);
void check_first_launches(Checks& checks);  // of this process: nothing may have been launched before
void check_gates(Checks& checks);
void check_graphs(Checks& checks);
void check_kernels(Checks& checks);
void check_runtime(Checks& checks);
void check_threads(Checks& checks);

}  // namespace kvfix
