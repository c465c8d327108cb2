// Copies between pinned and device memory. They return at once and read their source when they execute. From pinned to
// pinned memory the driver copies on the host instead, and the caller waits until everything before it on the stream is
// done.
#pragma once

#include <span>

#include "device/cuda_context.h"

namespace kvfix::cuda {

class Copies {
  public:
    explicit Copies(const PrimaryContext& context) : context_(context) {}

    void one(const CopySpan& span, Stream stream) const;
    void rows(const RowCopy& rows, Stream stream) const;
    // One driver call if the driver has it (CUDA 12.8), else one call for each span. The driver refuses batches on the
    // legacy default stream, handle 0. There it is also one call for each span, in stream order, whatever was asked.
    void batch(std::span<const CopySpan> spans, SourceOrder order, Stream stream) const;

    bool has_batch() const;

  private:
    void batch_in_one_call(std::span<const CopySpan> spans, SourceOrder order, Stream stream) const;

    const PrimaryContext& context_;
};

}  // namespace kvfix::cuda
