// The compiled kernels as part of the library, so one file serves machines with a GPU and without.
#pragma once

#include <cstddef>
#include <span>

namespace kvfix {

// A fat binary for the driver's module loader. Empty if the build found no CUDA compiler.
std::span<const std::byte> embedded_kernels();
// Names its contents: machine code ("sm_90") and portable code for newer GPUs ("compute_100"), or "none".
const char* kernels_built();

}  // namespace kvfix
