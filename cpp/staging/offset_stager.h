// Ships block offsets. The caller may overwrite everything that it passed as soon as ship() returns, or, if it lent the
// table, as soon as settle() returns. There is one lock per stager: ships may come from any thread, on any stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "process/home_process.h"
#include "staging/early_copy_stager.h"
#include "staging/offset_shipment.h"
#include "staging/snapshot_stager.h"

namespace kvfix {

enum class StagerMode : std::uint8_t { automatic, snapshot, early_copy };

struct StagerStats {
    StagerMode mode = StagerMode::snapshot;  // the one in use
    std::uint64_t ships = 0;
    std::uint64_t staged_bytes = 0;
    std::uint64_t late_copies = 0;  // early_copy only: the shipment went as a snapshot, or settle() waited
    std::uint64_t ring_waits = 0;
    std::uint64_t wait_ns = 0;
};

class OffsetStager {
  public:
    OffsetStager(std::shared_ptr<Device> device, const StagerConfig& config, StagerMode mode);
    OffsetStager(const OffsetStager&) = delete;
    OffsetStager& operator=(const OffsetStager&) = delete;
    ~OffsetStager();  // waits for what is pending; in a child process it leaves everything as it is

    // Throws std::invalid_argument, with nothing shipped, if the shipment does not fit the configuration or its own
    // table.
    void ship(const Shipment& shipment, std::uint32_t dst_rows);
    // Waits until the caller may write again to the tables that it has lent.
    void settle();
    // Whether there may be such a table. Takes no lock.
    bool has_lent() const { return has_lent_; }
    // Takes no lock, so it answers while a ship waits for a slot. The counts come from moments close to each other, not
    // from one.
    StagerStats stats() const;
    // Waits for pending ships and frees the memory. If one of them failed it throws, but the stager is closed all the
    // same. Later ships throw. It may be called twice.
    void close();

    const StagerConfig& config() const { return config_; }
    const Device& device() const { return *device_; }
    // Row numbers for a shipment of so many rows from the first on. Throws std::invalid_argument if there are fewer.
    std::span<const std::uint32_t> first_rows(std::size_t count) const;

  private:
    void check_shipment(const Shipment& shipment, std::uint32_t dst_rows) const;
    bool ship_early(const Shipment& shipment);

    // Smaller shipments go as snapshots. No size is too small if early copies were asked for.
    struct EarlyFrom {
        std::size_t lent = 0, awaited = 0;  // bytes
    };

    const HomeProcess home_;
    const std::shared_ptr<Device> device_;
    const StagerConfig config_;
    const StagerMode mode_;  // the one in use
    const std::vector<std::uint32_t> every_row_;
    EarlyFrom early_from_;
    std::mutex mutex_;                                                // guards the stagers
    std::unique_ptr<EarlyCopyStager> early_;                          // in mode early_copy, until close()
    std::unique_ptr<SnapshotStager> snapshot_;                        // until close()
    std::vector<std::shared_ptr<const RingCounters>> ring_counters_;  // never replaced
    std::atomic<std::uint64_t> ships_ = 0;
    std::atomic<std::uint64_t> staged_bytes_ = 0;
    std::atomic<std::uint64_t> late_copies_ = 0;
    std::atomic<bool> has_lent_ = false;
};

}  // namespace kvfix
