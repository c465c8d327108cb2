// Batches of block copies that are ordered against the streams that compute: a store runs after the kernels that write its
// sources, a load after the last users of its destinations and before their next readers. Each transfer has an event of its own
// while it is in flight; their number is bounded. A transfer that fails throws at those that ask about it; the others go on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
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

    // Sources and destinations belong to the device until done(id). If this throws DeviceError they are the caller's again: what had
    // been enqueued was waited for.
    TransferId submit(std::span<const CopySpan> spans, const CopyOrder& order, StreamHandle stream);
    // The same for what `enqueue` puts on the stream, by whatever means; its own throws are treated like a copy's.
    TransferId submit(const std::function<void()>& enqueue, const CopyOrder& order, StreamHandle stream);
    // Both throw what the transfer failed with, as often as they are asked. done() never blocks behind a wait().
    bool done(TransferId id);
    void wait(TransferId id);
    std::uint64_t waits() const;
    // Those that nobody has seen end yet.
    std::size_t in_flight() const;
    std::size_t transfers_max() const { return transfers_max_; }

  private:
    // Under mutex_, but for the event: a thread that waits for it without the lock holds a share, so that the event is not
    // used again meanwhile.
    struct InFlight {
        TransferId id;
        std::shared_ptr<Fence> fence;
    };
    using Lock = std::unique_lock<std::mutex>;

    void make_room(Lock& lock);
    void await(InFlight transfer, Lock& lock);
    void retire_ended();
    bool has_ended(const InFlight& transfer);
    std::shared_ptr<Fence> spare_fence();
    const InFlight* find(TransferId id) const;
    void throw_if_failed(TransferId id) const;

    const std::shared_ptr<Device> device_;
    const std::size_t transfers_max_;
    mutable std::mutex mutex_;  // guards everything below
    TransferId next_id_ = 1;
    std::deque<InFlight> in_flight_;                        // in order of submission
    std::unordered_map<TransferId, std::string> failures_;  // at most transfers_max for each stream that breaks
    std::vector<std::shared_ptr<Fence>> fences_;            // not in use
    std::uint64_t waits_ = 0;
};

}  // namespace kvfix
