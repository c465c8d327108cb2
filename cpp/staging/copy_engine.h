// Batches of block copies that are ordered against the streams that compute. A store runs after the kernels that write
// its sources. A load runs after the last users of its destinations and before their next readers. Each transfer in
// flight has an event of its own, and their number is bounded. When a transfer fails, only the calls that ask about it
// throw; the others go on.
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
    // recorded after the sources are written, or after the destinations are last used
    std::optional<EventHandle> after;
    std::optional<StreamHandle> before;  // the stream that will use the destinations
    SourceOrder source = SourceOrder::stream;
};

class CopyEngine {
  public:
    // At most `transfers_max` are in flight at once; one more waits for the oldest.
    CopyEngine(std::shared_ptr<Device> device, std::size_t transfers_max);
    ~CopyEngine();

    // Sources and destinations belong to the device until done(id). If this throws, they belong to the caller again,
    // because it has waited for the copies that had been enqueued.
    TransferId submit(std::span<const CopySpan> spans, const CopyOrder& order, StreamHandle stream);
    // The same for whatever `enqueue` puts on the stream. An exception of `enqueue` is treated like an error of a copy.
    TransferId submit(const std::function<void()>& enqueue, const CopyOrder& order, StreamHandle stream);
    // Both throw the transfer's error each time that they are called. done() never blocks behind a wait().
    bool done(TransferId id);
    void wait(TransferId id);
    std::uint64_t waits() const;
    // Counts the transfers whose end has not been seen yet.
    std::size_t in_flight() const;
    std::size_t transfers_max() const { return transfers_max_; }

  private:
    // Guarded by mutex_, except the event: a thread that waits for it without the lock holds a share, so that the event
    // is not used again meanwhile.
    struct InFlight {
        TransferId id;
        std::shared_ptr<Fence> fence;
    };
    using Lock = std::unique_lock<std::mutex>;

    void make_room(Lock& lock);
    void await(InFlight transfer, Lock& lock);
    void retire_oldest();
    void retire_ended();
    void keep_fence(InFlight& ended);
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
