#include "staging/offset_stager.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "core/types.h"

namespace kvfix {
namespace {

// If a copy engine works beside the CPU, shipments of these sizes and more are worth an early copy (rows
// ours_*_early_copy and ours_v1_auto_lent of bench/results/staging.csv). An early copy wins at every larger size, but
// it takes a buffer on the device for each slot. Beyond the largest size, that memory is worth more to the KV cache
// than the time.
constexpr std::size_t kLentBytesMin = 65536;           // 64 KiB if no thread waits for the copy
constexpr std::size_t kEarlyCopyBytesMin = 262144;     // 256 KiB
constexpr std::size_t kEarlyTableBytesMax = 67108864;  // 64 MiB

// `why` builds the text, and only if it is needed: a ship checks every row.
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

StagerMode resolve(const Device& device, const StagerConfig& config, StagerMode mode) {
    if (mode == StagerMode::early_copy) {
        require(device.has_kernels(), [&] {
            return "mode early_copy needs kernels, and " + device.name() +
                   " has none: the package was built without a CUDA compiler, or for other GPUs";
        });
    }
    if (mode != StagerMode::automatic) {
        return mode;
    }
    const std::size_t bytes = config.elements_max() * sizeof(std::int32_t);
    const bool pays = bytes >= kLentBytesMin && bytes <= kEarlyTableBytesMax;
    return pays && device.has_kernels() && !device.simulated() ? StagerMode::early_copy : StagerMode::snapshot;
}

std::vector<std::uint32_t> numbers_to(std::uint32_t end) {
    std::vector<std::uint32_t> numbers(end);
    std::iota(numbers.begin(), numbers.end(), 0U);
    return numbers;
}

std::size_t bytes_of(const Shipment& shipment, OffsetLayout layout) {
    return shipment.rows.size() * shipment.table.pools * planes_of(layout) * shipment.width * sizeof(std::int32_t);
}

}  // namespace

OffsetStager::OffsetStager(std::shared_ptr<Device> device, const StagerConfig& config, StagerMode mode)
    : device_(std::move(device)),
      config_(checked(config)),
      mode_(resolve(*device_, config, mode)),
      every_row_(numbers_to(config.rows_max)) {
    if (mode == StagerMode::automatic) {
        early_from_ = {.lent = kLentBytesMin, .awaited = kEarlyCopyBytesMin};
    }
    if (mode_ == StagerMode::early_copy) {
        early_ = std::make_unique<EarlyCopyStager>(device_, config);
        ring_counters_.push_back(early_->ring_counters());
    }
    snapshot_ = std::make_unique<SnapshotStager>(device_, config);
    ring_counters_.push_back(snapshot_->ring_counters());
}

OffsetStager::~OffsetStager() {
    if (home_.left()) {  // the device's memory belongs to the parent, which ends what is pending
        static_cast<void>(early_.release());
        static_cast<void>(snapshot_.release());
    }
}

std::span<const std::uint32_t> OffsetStager::first_rows(std::size_t count) const {
    require(count <= every_row_.size(),
            [&] { return std::to_string(count) + " rows of a table of " + std::to_string(every_row_.size()); });
    return std::span(every_row_).first(count);
}

void OffsetStager::check_shipment(const Shipment& shipment, std::uint32_t dst_rows) const {
    const HostTable& table = shipment.table;
    const auto text = [](auto number) { return std::to_string(number); };
    require(snapshot_ != nullptr, [] { return "ship() after close()"; });
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
    home_.check("this OffsetStager");
    const std::lock_guard guard(mutex_);
    check_shipment(shipment, dst_rows);
    ++ships_;
    if (shipment.rows.empty() || shipment.width == 0) {
        return;
    }
    if (early_ != nullptr && ship_early(shipment)) {
        return;
    }
    staged_bytes_ += snapshot_->ship(shipment);
}

bool OffsetStager::ship_early(const Shipment& shipment) {
    if (bytes_of(shipment, config_.layout) < (shipment.lent ? early_from_.lent : early_from_.awaited)) {
        return false;
    }
    has_lent_ = has_lent_ || shipment.lent;  // first, for one that fails on its way may have been lent as well
    const std::uint64_t bytes = early_->ship(shipment);
    staged_bytes_ += bytes;
    late_copies_ = early_->late();
    return bytes != 0;
}

void OffsetStager::settle() {
    home_.check("this OffsetStager");
    const std::lock_guard guard(mutex_);
    if (early_ != nullptr) {
        early_->settle();
        late_copies_ = early_->late();
    }
    has_lent_ = false;
}

StagerStats OffsetStager::stats() const {
    RingStats ring;
    for (const auto& counters : ring_counters_) {
        const RingStats one = counters->read();
        ring.waits += one.waits;
        ring.wait_ns += one.wait_ns;
    }
    return {.mode = mode_,
            .ships = ships_,
            .staged_bytes = staged_bytes_,
            .late_copies = late_copies_,
            .ring_waits = ring.waits,
            .wait_ns = ring.wait_ns};
}

void OffsetStager::close() {
    home_.check("this OffsetStager");
    const std::lock_guard guard(mutex_);
    // Taken out first, so that the stager is closed even if something pending has failed.
    const auto early = std::move(early_);
    const auto snapshot = std::move(snapshot_);
    if (early != nullptr) {
        early->drain();
    }
    if (snapshot != nullptr) {
        snapshot->drain();
    }
}

}  // namespace kvfix
