// Batches of block copies that are ordered against the streams that compute: a store runs after the kernels that write its
// sources, a load after whoever used its destinations and before whoever reads them. Each transfer has an event of its own while it
// is in flight; their number is bounded.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "staging/fence.h"

namespace kvfix {

using TransferId = std::uint64_t;

struct CopyOrder {
    std::optional<EventHandle> after;    // recorded where the sources are written, or the destinations last used
    std::optional<StreamHandle> before;  // will use the destinations
    SourceOrder source = SourceOrder::stream;
};

class CopyEngine {
  public:
    // `transfers_max` in flight at once; one more waits for the oldest.
    CopyEngine(std::shared_ptr<Device> device, std::size_t transfers_max);
    ~CopyEngine();

    // Sources and destinations belong to the device until done(id).
    TransferId submit(std::span<const CopySpan> spans, const CopyOrder& order, StreamHandle stream);
    bool done(TransferId id);
    void wait(TransferId id);
    std::uint64_t waits() const;

  private:
    struct InFlight {
        TransferId id;
        std::unique_ptr<Fence> fence;
    };

    void retire_passed();
    InFlight* find(TransferId id);

    mutable std::mutex mutex_;  // guards everything below
    std::shared_ptr<Device> device_;
    std::size_t transfers_max_;
    TransferId next_id_ = 1;
    std::deque<InFlight> in_flight_;              // in order of submission
    std::vector<std::unique_ptr<Fence>> fences_;  // not in use
    std::uint64_t waits_ = 0;
};

}  // namespace kvfix
