// The compiled kernels, as part of the library: one file serves machines with a GPU and without.
#pragma once

#include <cstddef>
#include <span>

namespace kvfix {

// A fat binary for the driver's module loader; empty where no CUDA compiler was present when this was built.
std::span<const std::byte> embedded_kernels();
// What it holds: machine code ("sm_90") and portable code for newer GPUs ("compute_100"), or "none".
const char* kernels_built();

}  // namespace kvfix
