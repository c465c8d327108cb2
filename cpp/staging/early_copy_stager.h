// The copy engine takes the rows of a batch to the device at once, on a stream of the stager's own that waits for
// nothing. Later work on the caller's stream uses that copy. The CPU reads nothing of the table, whose lines have left
// its caches since they were written. This needs kernels, and a table in pinned memory.
//
// The copy takes microseconds, unless others keep the copy engine busy: it does one copy after another, whatever their
// streams. So the caller waits for a limited time. A copy that is late has not touched the destination; the shipment
// goes another way, and so do the next few.
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

    // Returns the bytes that travel. If it returns 0, nothing was shipped, and the table belongs to the caller.
    std::uint64_t ship(const Shipment& shipment);
    // Gives the table of every shipment back to the caller, lent ones included.
    void settle();
    void drain();
    std::uint64_t late() const { return late_; }
    std::shared_ptr<const RingCounters> ring_counters() const { return ring_.counters(); }

  private:
    // A range of the table's rows that contains all rows of the batch.
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
    // How the range lies in a buffer: as in the table, gaps and second planes included, or line by line.
    struct Layout {
        bool as_in_table;
        std::size_t row_elements, pool_elements;
    };
    Layout layout_of(const Shipment& shipment, Range range) const;
    void copy(const Shipment& shipment, Range range, const Layout& layout, const Buffer& buffer);
    using Clock = std::chrono::steady_clock;
    Clock::time_point limit_of(std::size_t bytes) const;
    static bool arrives(Fence& copied, Clock::time_point until);
    void gather(const Shipment& shipment, Range range, const Layout& layout, const Buffer& buffer, StagingSlot slot);
    void count_late();

    std::shared_ptr<Device> device_;
    StagerConfig config_;
    std::size_t buffer_elements_ = 0;
    StreamHandle copies_;         // the stager's own
    std::deque<Buffer> buffers_;  // one for each slot of the ring, which knows when the caller's stream is done with it
    StagingRing ring_;            // row numbers
    struct Lent {
        Fence* copied = nullptr;
        Clock::time_point late_from;
    };
    Lent lent_;                 // the last copy whose call did not wait
    HostTable judged_{};        // the last table that was examined,
    bool judged_fit_ = false;   // and whether it can be copied from
    std::uint32_t detour_ = 0;  // shipments that go another way before the next attempt
    bool broken_ = false;       // the copies' stream has failed
    std::uint64_t late_ = 0;
};

}  // namespace kvfix
