// The rows of a batch go to the device at once, by its copy engine, on a stream of the stager's own that waits for nothing; what is
// behind on the caller's stream works from that copy. The CPU reads nothing of the table, whose lines have left its caches since
// they were written. Needs kernels, and a table in pinned memory.
//
// The copy takes microseconds, unless others keep the copy engine busy: copies are done one after the other, whatever their stream.
// So the caller waits for a limited time. A copy that is late has touched nothing of the caller's, and the shipment goes another
// way, as the next ones do for a while.
//
// A caller that leaves the table alone until settle() does not wait; its stream does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "staging/offset_shipment.h"
#include "staging/staging_ring.h"

namespace kvfix {

class EarlyCopyStager {
  public:
    EarlyCopyStager(std::shared_ptr<Device> device, const StagerConfig& config);
    ~EarlyCopyStager();

    // Returns the bytes that travel. 0: nothing was shipped, and the table is the caller's.
    std::uint64_t ship(const Shipment& shipment);
    // The table of every shipment, lent ones too, is the caller's again.
    void settle();
    void drain();
    std::uint64_t late() const { return late_; }
    std::shared_ptr<const RingCounters> ring_counters() const { return ring_.counters(); }

  private:
    // Of the table; all that the batch needs lies in it.
    struct Range {
        std::uint32_t first, rows;
    };
    struct Buffer {
        explicit Buffer(const std::shared_ptr<Device>& device, std::size_t bytes)
            : memory(device, bytes), copied(device) {}
        DeviceMemory memory;
        Fence copied;
    };

    bool fits(const HostTable& table);
    bool is_pinned(const HostTable& table) const;
    void copy(const Shipment& shipment, Range range, const Buffer& buffer);
    using Clock = std::chrono::steady_clock;
    Clock::time_point limit_of(std::size_t bytes) const;
    static bool arrives(Fence& copied, Clock::time_point until);
    void gather(const Shipment& shipment, Range range, const Buffer& buffer, StagingSlot slot);
    void count_late();

    std::shared_ptr<Device> device_;
    StagerConfig config_;
    StreamHandle copies_;         // the stager's own
    std::deque<Buffer> buffers_;  // one to each slot of the ring, which says when the caller's stream has used it
    StagingRing ring_;            // row numbers
    struct Lent {
        Fence* copied = nullptr;
        Clock::time_point late_from;
    };
    Lent lent_;                 // the last copy whose call did not wait
    HostTable judged_{};        // the last table that was looked at,
    bool judged_fit_ = false;   // and whether it can be copied from
    std::uint32_t detour_ = 0;  // shipments that go another way before the next try
    bool broken_ = false;       // the stream of the copies has failed
    std::uint64_t late_ = 0;
};

}  // namespace kvfix
