// Copies as a CUDA graph, by stream capture, which is how frameworks make theirs. A copy out of pinned memory becomes a
// node that holds the address and reads it at every launch.
#pragma once

#include <span>

#include "device/cuda_context.h"

namespace kvfix::cuda {

// Capturing enqueues nothing: the copies run when the graph is launched. The caller owns the result.
GraphExec capture_copies(const PrimaryContext& context, std::span<const CopySpan> spans);

}  // namespace kvfix::cuda
