// The embedded kernels, loaded into the context of one GPU.
#pragma once

#include <array>
#include <string>

#include "device/cuda_context.h"
#include "device/cuda_launch.h"

namespace kvfix::cuda {

class Kernels {
  public:
    // Loads every kernel now. Otherwise the driver would load it at its first launch and then wait for streams, which a
    // gate may hold. Loads nothing if the build has no kernels or none of them runs on this GPU.
    explicit Kernels(const PrimaryContext& context);
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;
    ~Kernels();

    bool loaded() const { return module_ != nullptr; }
    void launch(const KernelCall& call, Stream stream) const;
    // Launches with a shape of the caller's choice, for measurements.
    void launch(const KernelCall& call, const LaunchShape& shape, Stream stream) const;

  private:
    const PrimaryContext& context_;
    Gpu gpu_;
    std::string why_not_;
    Module module_ = nullptr;
    std::array<Function, std::variant_size_v<KernelCall>> functions_{};  // by the call's index in KernelCall
};

}  // namespace kvfix::cuda
