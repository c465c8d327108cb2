// The primary context of one GPU, which all libraries of a process share, torch among them.
#pragma once

#include "device/cuda_driver.h"

namespace kvfix::cuda {

// Makes the context current on this thread for its lifetime, and then restores what was current before.
//
// Meanwhile the thread stays out of other threads' captures. Otherwise, while any thread captures a CUDA graph as torch
// does by default, a wait or a query of an event would fail, and the capture with it.
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
    int capture_mode_ = kCaptureRelaxed;  // the thread's own mode, while ours is set
};

class PrimaryContext {
  public:
    PrimaryContext(const Driver& driver, int ordinal);
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;
    ~PrimaryContext();

    // Every call into the driver is made under one of these, because it may come from any thread.
    [[nodiscard]] CurrentContext use() const { return {driver, context_}; }
    // "cuda:0 NVIDIA H200"
    std::string name() const;
    std::uint32_t multiprocessors() const { return attribute(kAttributeMultiprocessors); }
    // The major number of its compute capability: 9 is Hopper.
    std::uint32_t compute_major() const { return attribute(kAttributeComputeMajor); }

    const Driver& driver;

  private:
    std::uint32_t attribute(int which) const;

    int ordinal_;
    DeviceNumber device_ = 0;
    Context context_ = nullptr;
};

}  // namespace kvfix::cuda
