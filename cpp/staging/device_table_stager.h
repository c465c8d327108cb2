// The table lives on the device. What changed since it was last shipped is found by comparing with a shadow on the host; only
// that travels, and a kernel writes the batch-ordered destination. Needs kernels.
//
// The shadow is what the device table will hold once everything enqueued has run. It is written as entries are staged;
// if anything fails in between, or on the stream later, both are lost and start again from zero.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "staging/entry_writer.h"
#include "staging/offset_shipment.h"
#include "staging/row_diff.h"
#include "staging/staging_ring.h"
#include "staging/table_lines.h"

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
    void order_after_last_use(StreamHandle stream);
    void stage_changes(std::span<const TableLine> lines, std::uint32_t width, EntryWriter& writer);
    template <class Put>
    std::uint32_t stage_lines(std::span<const TableLine> lines, std::uint32_t width, const Put& put);
    RowPiece piece_of(const TableLine& line, std::uint32_t block, std::uint32_t width) const;
    void gather(const Shipment& shipment, StagingSlot slot);

    std::shared_ptr<Device> device_;
    StagerConfig config_;
    std::uint32_t entries_max_;  // of one slot
    DeviceMemory table_;         // (pools, rows_max, planes, blocks_max)
    std::vector<std::int32_t> shadow_;
    TableLines lines_;
    StagingRing ring_;  // behind table_: it ends first, and waits for the kernels that use the table
    bool lost_ = true;  // contents unknown: zero both before the next use
    std::optional<StreamHandle> last_stream_;
};

}  // namespace kvfix
