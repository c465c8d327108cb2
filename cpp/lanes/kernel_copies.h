// Copies by a kernel on few multiprocessors, for blocks that take a DMA engine longer to begin than to move. The kernel reads which
// blocks from a pinned slot, which is used again only once it has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "staging/staging_ring.h"

namespace kvfix {

// One owner at a time; its lock, or its only thread, covers it.
class KernelCopies {
  public:
    static constexpr std::size_t kPairsPerLaunch = 4096;

    // `sms`: multiprocessors that a copy may take. `launches_max` in flight at once; one more waits for the oldest. Throws
    // std::invalid_argument where the device has no kernels, or fewer multiprocessors.
    KernelCopies(std::shared_ptr<Device> device, std::uint32_t sms, std::size_t launches_max);

    // The kernel moves 16 bytes at a time.
    static bool takes(std::span<const CopySpan> spans);
    // A launch for each run of spans of one size. Addresses are those of the device: pinned memory must have the same there.
    void enqueue(std::span<const CopySpan> spans, StreamHandle stream);

  private:
    void launch(std::span<const CopySpan> run, StreamHandle stream);

    const std::shared_ptr<Device> device_;
    const std::uint32_t sms_;
    StagingRing ring_;
};

}  // namespace kvfix
