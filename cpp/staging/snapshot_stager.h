// Gathers the batch's rows into a pinned slot and ships that. The cost is in proportion to the batch, whether its rows
// changed or not.
#pragma once

#include <cstdint>
#include <memory>

#include "staging/offset_shipment.h"
#include "staging/staging_ring.h"

namespace kvfix {

class SnapshotStager {
  public:
    SnapshotStager(std::shared_ptr<Device> device, const StagerConfig& config);

    // Returns the bytes staged.
    std::uint64_t ship(const Shipment& shipment);
    void drain() { ring_.drain(); }
    std::shared_ptr<const RingCounters> ring_counters() const { return ring_.counters(); }

  private:
    void ship_final_planes(const Shipment& shipment, StagingSlot& slot);
    void ship_pages(const Shipment& shipment, StagingSlot& slot);

    std::shared_ptr<Device> device_;
    StagerConfig config_;
    bool expands_on_device_;  // v2 with kernels: only the K plane travels
    StagingRing ring_;
};

}  // namespace kvfix
