// The number of threads that a kernel is started with. Any number gives the right result, because the kernels loop over
// their work; these numbers are fast.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace kvfix::cuda {

struct LaunchShape {
    std::uint32_t blocks_x = 0;      // rows, or pieces of one-dimensional work
    std::uint32_t blocks_y = 1;      // along a row
    std::uint32_t threads = 0;       // in each block
    std::uint32_t shared_bytes = 0;  // dynamic shared memory for each block

    bool empty() const { return blocks_x == 0; }  // nothing to do: the kernel is not started
    bool operator==(const LaunchShape&) const = default;
};

struct Gpu {
    std::uint32_t multiprocessors;
    bool copies_in_bulk;  // Hopper and newer
};

LaunchShape launch_shape(const KernelCall& call, const Gpu& gpu);

}  // namespace kvfix::cuda
