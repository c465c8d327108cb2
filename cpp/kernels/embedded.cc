#include "kernels/embedded.h"

namespace kvfix {

#ifdef KVFIX_KERNELS_BUILT

namespace {

// The loader reads the header of a fat binary in place, so it must be aligned.
alignas(16) constexpr unsigned char kFatBinary[] = {
#include "kernels_fatbin.inc"
};

}  // namespace

std::span<const std::byte> embedded_kernels() { return std::as_bytes(std::span(kFatBinary)); }

const char* kernels_built() { return KVFIX_KERNELS_BUILT; }

#else

std::span<const std::byte> embedded_kernels() { return {}; }

const char* kernels_built() { return "none"; }

#endif

}  // namespace kvfix
