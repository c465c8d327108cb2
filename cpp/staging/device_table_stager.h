// The table lives on the device. What changed since it was last shipped is found by comparing with a shadow on the host; only
// that travels, and a kernel writes the batch-ordered destination. Needs kernels.
//
// The shadow is what the device table will hold once everything enqueued has run. It is written row by row as entries are staged;
// if anything fails in between, or on the stream later, both are lost and start again from zero.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "staging/offset_shipment.h"
#include "staging/staging_ring.h"

namespace kvfix {

class DeviceTableStager {
  public:
    DeviceTableStager(std::shared_ptr<Device> device, const StagerConfig& config);

    struct Shipped {
        std::uint64_t bytes = 0;
        std::uint64_t entries = 0;
    };
    Shipped ship(const Shipment& shipment);
    void drain() { ring_.drain(); }
    std::shared_ptr<const RingCounters> ring_counters() const { return ring_.counters(); }

  private:
    class EntryWriter;

    void order_after_last_use(StreamHandle stream);
    void stage_row(const Shipment& shipment, std::uint32_t pool, std::uint32_t row, EntryWriter& writer);
    void gather(const Shipment& shipment, StagingSlot slot);

    std::shared_ptr<Device> device_;
    StagerConfig config_;
    std::uint32_t entries_max_;  // of one slot
    DeviceMemory table_;         // (pools, rows_max, planes, blocks_max)
    std::vector<std::int32_t> shadow_;
    StagingRing ring_;  // behind table_: it ends first, and waits for the kernels that use the table
    bool lost_ = true;  // contents unknown: zero both before the next use
    std::optional<StreamHandle> last_stream_;
};

}  // namespace kvfix
