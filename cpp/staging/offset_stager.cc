#include "staging/offset_stager.h"

#include <algorithm>
#include <stdexcept>

#include "core/types.h"
#include "staging/shared_lines.h"

namespace kvfix {
namespace {

// Tables from this size on are kept on the device: where bench_staging.py, which prints it, sees the CPU time of the two ways
// cross (rows ours_*_snapshot and ours_*_device_table of bench/results/staging.csv).
constexpr std::size_t kDeviceTableBytesMin = 1048576;  // 1 MiB

// `why` makes the text, and only when it is needed: a ship checks every row.
template <class Why>
void require(bool ok, const Why& why) {
    if (!ok) [[unlikely]] {
        throw std::invalid_argument("OffsetStager: " + std::string(why()));
    }
}

StagerConfig checked(const StagerConfig& config) {
    require(config.num_pools >= 1 && config.num_pools <= kPoolsMax,
            [&] { return "num_pools is " + std::to_string(config.num_pools) + "; 1 to " + std::to_string(kPoolsMax); });
    require(config.rows_max >= 1, [] { return "rows_max is 0; at least 1"; });
    require(config.blocks_max >= 1, [] { return "blocks_max is 0; at least 1"; });
    require(config.slots >= 2, [&] {
        return "slots is " + std::to_string(config.slots) + "; with fewer than 2 every ship waits for the one before";
    });
    require(config.elements_max() <= kNone,
            [&] { return "a table of " + std::to_string(config.elements_max()) + " entries is over the limit"; });
    return config;
}

// Held by the stager that is in use alone, so that closing it lets the workers go.
StagerConfig with_team(StagerConfig config) {
    if (config.team == nullptr && config.elements_max() * sizeof(std::int32_t) >= kTeamBytesMin) {
        config.team = WorkerTeam::shared();
    }
    return config;
}

StagerMode resolve(const Device& device, const StagerConfig& config, StagerMode mode) {
    if (mode == StagerMode::device_table) {
        require(device.has_kernels(), [&] {
            return "mode device_table needs kernels, and " + device.name() +
                   " has none: the package was built without a CUDA compiler, or for other GPUs";
        });
    }
    if (mode != StagerMode::automatic) {
        return mode;
    }
    const bool large = config.elements_max() * sizeof(std::int32_t) >= kDeviceTableBytesMin;
    return large && device.has_kernels() ? StagerMode::device_table : StagerMode::snapshot;
}

}  // namespace

OffsetStager::OffsetStager(std::shared_ptr<Device> device, const StagerConfig& config, StagerMode mode)
    : config_(checked(config)), mode_(resolve(*device, config, mode)) {
    if (mode_ == StagerMode::device_table) {
        device_table_ = std::make_unique<DeviceTableStager>(std::move(device), with_team(config));
        ring_counters_ = device_table_->ring_counters();
    } else {
        snapshot_ = std::make_unique<SnapshotStager>(std::move(device), with_team(config));
        ring_counters_ = snapshot_->ring_counters();
    }
}

void OffsetStager::check_shipment(const Shipment& shipment, std::uint32_t dst_rows) const {
    const HostTable& table = shipment.table;
    const auto text = [](auto number) { return std::to_string(number); };
    require(snapshot_ != nullptr || device_table_ != nullptr, [] { return "ship() after close()"; });
    require(table.pools == config_.num_pools, [&] {
        return "the table has " + text(table.pools) + " pools, the stager was made for " + text(config_.num_pools);
    });
    require(table.rows <= config_.rows_max && table.blocks <= config_.blocks_max, [&] {
        return "a table of " + text(table.rows) + " rows and " + text(table.blocks) + " blocks is larger than the " +
               text(config_.rows_max) + " x " + text(config_.blocks_max) + " the stager was made for";
    });
    require(shipment.width <= table.blocks && shipment.width <= shipment.dst.blocks, [&] {
        return "width " + text(shipment.width) + " is more than the table's " + text(table.blocks) +
               " or the destination's " + text(shipment.dst.blocks) + " blocks";
    });
    require(shipment.rows.size() <= dst_rows && shipment.rows.size() <= config_.rows_max, [&] {
        return text(shipment.rows.size()) + " rows do not fit a destination of " + text(dst_rows) +
               " rows and a stager of " + text(config_.rows_max);
    });
    for (const std::uint32_t row : shipment.rows) {
        require(row < table.rows,
                [&] { return "row " + text(row) + " is out of a table of " + text(table.rows) + " rows"; });
    }
}

void OffsetStager::ship(const Shipment& shipment, std::uint32_t dst_rows) {
    const std::lock_guard guard(mutex_);
    check_shipment(shipment, dst_rows);
    ++ships_;
    if (shipment.rows.empty() || shipment.width == 0) {
        return;
    }
    if (snapshot_ != nullptr) {
        staged_bytes_ += snapshot_->ship(shipment);
        return;
    }
    const auto shipped = device_table_->ship(shipment);
    staged_bytes_ += shipped.bytes;
    entries_changed_ += shipped.entries;
}

StagerStats OffsetStager::stats() const {
    const RingStats ring = ring_counters_->read();
    return {.mode = mode_,
            .ships = ships_,
            .staged_bytes = staged_bytes_,
            .entries_changed = entries_changed_,
            .ring_waits = ring.waits,
            .wait_ns = ring.wait_ns};
}

void OffsetStager::close() {
    const std::lock_guard guard(mutex_);
    // Taken out first: closed is closed, even if something pending has failed.
    const auto snapshot = std::move(snapshot_);
    const auto device_table = std::move(device_table_);
    if (snapshot != nullptr) {
        snapshot->drain();
    }
    if (device_table != nullptr) {
        device_table->drain();
    }
}

}  // namespace kvfix
