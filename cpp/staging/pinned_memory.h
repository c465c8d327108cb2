// Memory that a stager owns on the host and on the device. If the device cannot confirm that it is done with the
// memory, the memory is kept: a leak beats a stray write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/device.h"

namespace kvfix {

class PinnedMemory {
  public:
    PinnedMemory(std::shared_ptr<Device> device, std::size_t bytes)
        : device_(std::move(device)),
          bytes_(bytes),
          data_(device_->map_pinned(bytes)),
          device_address_(device_->device_address(data_)) {}
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    ~PinnedMemory() {
        try {
            device_->unmap_pinned(data_, bytes_);
        } catch (const DeviceError&) {  // a destructor cannot report it, and the memory may still be in use
        }
    }

    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data_); }
    std::uintptr_t device_address() const { return device_address_; }

  private:
    std::shared_ptr<Device> device_;
    std::size_t bytes_;
    void* data_;
    std::uintptr_t device_address_;
};

class DeviceMemory {
  public:
    DeviceMemory(std::shared_ptr<Device> device, std::size_t bytes)
        : device_(std::move(device)), bytes_(bytes), address_(device_->allocate(bytes)) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    ~DeviceMemory() {
        try {
            device_->release(address_);
        } catch (const DeviceError&) {
        }
    }

    std::uintptr_t address() const { return address_; }
    std::size_t bytes() const { return bytes_; }

  private:
    std::shared_ptr<Device> device_;
    std::size_t bytes_;
    std::uintptr_t address_;
};

}  // namespace kvfix
