#include "staging/offset_stager.h"

#include <algorithm>
#include <stdexcept>

#include "core/types.h"

namespace kvfix {
namespace {

// Tables from this size on are kept on the device: the crossover that bench_staging.py measures.
constexpr std::size_t kDeviceTableBytesMin = 131072;  // 128 KiB

void require(bool ok, const std::string& why) {
    if (!ok) {
        throw std::invalid_argument("OffsetStager: " + why);
    }
}

StagerConfig checked(const StagerConfig& config) {
    require(config.num_pools >= 1 && config.num_pools <= kPoolsMax,
            "num_pools is " + std::to_string(config.num_pools) + "; 1 to " + std::to_string(kPoolsMax));
    require(config.rows_max >= 1, "rows_max is 0; at least 1");
    require(config.blocks_max >= 1, "blocks_max is 0; at least 1");
    require(config.slots >= 2,
            "slots is " + std::to_string(config.slots) + "; with fewer than 2 every ship waits for the one before");
    require(config.elements_max() <= kNone,
            "a table of " + std::to_string(config.elements_max()) + " entries is over the limit");
    return config;
}

StagerMode resolve(const Device& device, const StagerConfig& config, StagerMode mode) {
    if (mode == StagerMode::device_table) {
        require(device.has_kernels(),
                "mode device_table needs kernels, and " + device.name() +
                    " has none: the package was built without a CUDA compiler, or for other GPUs");
    }
    if (mode != StagerMode::automatic) {
        return mode;
    }
    const bool large = config.elements_max() * sizeof(std::int32_t) >= kDeviceTableBytesMin;
    return large && device.has_kernels() ? StagerMode::device_table : StagerMode::snapshot;
}

}  // namespace

OffsetStager::OffsetStager(std::shared_ptr<Device> device, const StagerConfig& config, StagerMode mode)
    : config_(checked(config)) {
    stats_.mode = resolve(*device, config, mode);
    if (stats_.mode == StagerMode::device_table) {
        device_table_ = std::make_unique<DeviceTableStager>(std::move(device), config);
    } else {
        snapshot_ = std::make_unique<SnapshotStager>(std::move(device), config);
    }
}

void OffsetStager::check_shipment(const Shipment& shipment, std::uint32_t dst_rows) const {
    const HostTable& table = shipment.table;
    require(snapshot_ != nullptr || device_table_ != nullptr, "ship() after close()");
    require(table.pools == config_.num_pools, "the table has " + std::to_string(table.pools) +
                                                  " pools, the stager was made for " +
                                                  std::to_string(config_.num_pools));
    require(table.rows <= config_.rows_max && table.blocks <= config_.blocks_max,
            "a table of " + std::to_string(table.rows) + " rows and " + std::to_string(table.blocks) +
                " blocks is larger than the " + std::to_string(config_.rows_max) + " x " +
                std::to_string(config_.blocks_max) + " the stager was made for");
    require(shipment.width <= table.blocks && shipment.width <= shipment.dst.blocks,
            "width " + std::to_string(shipment.width) + " is more than the table's " + std::to_string(table.blocks) +
                " or the destination's " + std::to_string(shipment.dst.blocks) + " blocks");
    require(shipment.rows.size() <= dst_rows && shipment.rows.size() <= config_.rows_max,
            std::to_string(shipment.rows.size()) + " rows do not fit a destination of " + std::to_string(dst_rows) +
                " rows and a stager of " + std::to_string(config_.rows_max));
    for (const std::uint32_t row : shipment.rows) {
        require(row < table.rows,
                "row " + std::to_string(row) + " is out of a table of " + std::to_string(table.rows) + " rows");
    }
}

void OffsetStager::ship(const Shipment& shipment, std::uint32_t dst_rows) {
    const std::lock_guard guard(mutex_);
    check_shipment(shipment, dst_rows);
    ++stats_.ships;
    if (shipment.rows.empty() || shipment.width == 0) {
        return;
    }
    if (snapshot_ != nullptr) {
        stats_.staged_bytes += snapshot_->ship(shipment);
        return;
    }
    const auto shipped = device_table_->ship(shipment);
    stats_.staged_bytes += shipped.bytes;
    stats_.entries_changed += shipped.entries;
}

StagerStats OffsetStager::stats() const {
    const std::lock_guard guard(mutex_);
    StagerStats out = stats_;
    if (snapshot_ != nullptr || device_table_ != nullptr) {
        const RingStats& ring = snapshot_ != nullptr ? snapshot_->ring_stats() : device_table_->ring_stats();
        out.ring_waits = ring.waits;
        out.wait_ns = ring.wait_ns;
    }
    return out;
}

void OffsetStager::close() {
    const std::lock_guard guard(mutex_);
    // Taken out first: closed is closed, even if something pending has failed.
    const auto snapshot = std::move(snapshot_);
    const auto device_table = std::move(device_table_);
    if (snapshot != nullptr) {
        stats_.ring_waits = snapshot->ring_stats().waits;
        stats_.wait_ns = snapshot->ring_stats().wait_ns;
        snapshot->drain();
    }
    if (device_table != nullptr) {
        stats_.ring_waits = device_table->ring_stats().waits;
        stats_.wait_ns = device_table->ring_stats().wait_ns;
        device_table->drain();
    }
}

}  // namespace kvfix
