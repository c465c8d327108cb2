// The primary context of one GPU, which all libraries of a process share (torch among them).
#pragma once

#include "device/cuda_driver.h"

namespace kvfix::cuda {

// Current on this thread while it lives; then the thread has again what it had before.
//
// Meanwhile the thread also takes no part in the captures of others. Without that, a query of an event, or a wait, fails while any
// thread captures a CUDA graph as torch does by default, and the capture fails with it.
class CurrentContext {
  public:
    CurrentContext(const Driver& driver, Context context);
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;
    ~CurrentContext();

  private:
    const Driver& driver_;
    Context context_;
    Context before_ = nullptr;
    int capture_mode_ = kCaptureRelaxed;  // the thread's own, while it has ours
};

class PrimaryContext {
  public:
    PrimaryContext(const Driver& driver, int ordinal);
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;
    ~PrimaryContext();

    // Every call into the driver is made under one of these: it may come from any thread.
    [[nodiscard]] CurrentContext use() const { return {driver, context_}; }
    // "cuda:0 NVIDIA H200"
    std::string name() const;
    std::uint32_t multiprocessors() const { return attribute(kAttributeMultiprocessors); }
    // Of its compute capability: 9 is Hopper.
    std::uint32_t compute_major() const { return attribute(kAttributeComputeMajor); }

    const Driver& driver;

  private:
    std::uint32_t attribute(int which) const;

    int ordinal_;
    DeviceNumber device_ = 0;
    Context context_ = nullptr;
};

}  // namespace kvfix::cuda
