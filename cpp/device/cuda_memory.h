// Pinned host memory of exact size. Pages are mapped and then registered, so nothing is rounded up to a power of two.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "device/cuda_context.h"

namespace kvfix::cuda {

class PinnedMaps {
  public:
    explicit PinnedMaps(const PrimaryContext& context) : context_(context) {}

    void* map(std::size_t bytes);
    // Maps that are not unmapped stay, because a use may be pending.
    void unmap(void* memory, std::size_t bytes);

  private:
    const PrimaryContext& context_;
    std::mutex mutex_;  // guards bytes_
    std::map<void*, std::size_t> bytes_;
};

void register_host(const PrimaryContext& context, void* memory, std::size_t bytes);
Address device_address(const PrimaryContext& context, void* pinned);

}  // namespace kvfix::cuda
