#include "staging/device_table_stager.h"

#include <algorithm>
#include <cstring>

#include "staging/row_diff.h"

namespace kvfix {
namespace {

// A slot holds this many entries at most; more changes take several slots, in stream order.
constexpr std::uint32_t kEntriesMax = 64 * 1024;

}  // namespace

// Fills slots with entries; a full one is applied and the next is taken.
class DeviceTableStager::EntryWriter {
  public:
    EntryWriter(DeviceTableStager& stager, StreamHandle stream)
        : stager_(stager), stream_(stream), slot_(stager.ring_.take()) {}

    void put(std::uint32_t index, std::int32_t value) {
        if (count_ == stager_.entries_max_) {
            apply();
            std::move(*slot_).submit(stream_);
            slot_.reset();
            slot_.emplace(stager_.ring_.take());
        }
        static_cast<TableEntry*>(slot_->data())[count_++] = {index, value};
        ++total_;
    }
    // Before any entry. The slot is lent so that this has an end too: if nothing else comes, the slot waits for the stream.
    void clear_table() {
        slot_->lend(stream_);
        std::ranges::fill(stager_.shadow_, 0);
        stager_.device_->launch(FillWords{.words = reinterpret_cast<std::uint32_t*>(stager_.table_.address()),
                                          .count = stager_.shadow_.size(),
                                          .value = 0},
                                stream_);
    }
    // Applies the rest; the slot's end is free for the row numbers.
    StagingSlot finish() {
        apply();
        return std::move(*slot_);
    }
    std::uint64_t total() const { return total_; }

  private:
    void apply() {
        if (count_ != 0) {
            stager_.device_->launch(
                ApplyEntries{.table = reinterpret_cast<std::int32_t*>(stager_.table_.address()),
                             .entries = reinterpret_cast<const TableEntry*>(slot_->lend_to_kernels(stream_)),
                             .count = count_},
                stream_);
            count_ = 0;
        }
    }

    DeviceTableStager& stager_;
    StreamHandle stream_;
    std::optional<StagingSlot> slot_;
    std::uint32_t count_ = 0;
    std::uint64_t total_ = 0;
};

DeviceTableStager::DeviceTableStager(std::shared_ptr<Device> device, const StagerConfig& config)
    : device_(std::move(device)),
      config_(config),
      entries_max_(static_cast<std::uint32_t>(std::min<std::size_t>(config.elements_max(), kEntriesMax))),
      table_(device_, config.elements_max() * sizeof(std::int32_t)),
      shadow_(config.elements_max()),
      ring_(device_, config.slots,
            std::size_t{entries_max_} * sizeof(TableEntry) + std::size_t{config.rows_max} * sizeof(std::uint32_t)) {}

DeviceTableStager::Shipped DeviceTableStager::ship(const Shipment& shipment) {
    order_after_last_use(shipment.stream);
    const bool restarts = lost_;
    lost_ = true;  // until everything has been enqueued
    EntryWriter writer(*this, shipment.stream);
    if (restarts) {
        writer.clear_table();
    }
    for (std::uint32_t pool = 0; pool < shipment.table.pools; ++pool) {
        for (const std::uint32_t row : shipment.rows) {
            stage_row(shipment, pool, row, writer);
        }
    }
    gather(shipment, writer.finish());
    lost_ = false;
    return {writer.total() * sizeof(TableEntry) + shipment.rows.size() * sizeof(std::uint32_t), writer.total()};
}

// The device table is one object: uses on different streams must not overlap. A stream that has failed delivered nothing, and
// would take down whoever waits for it.
void DeviceTableStager::order_after_last_use(StreamHandle stream) {
    if (last_stream_ && *last_stream_ != stream) {
        lost_ = ring_.drop_failed() || lost_;
        if (const Fence* last = ring_.last_fence()) {
            device_->make_wait(stream, last->event());
        }
    }
    last_stream_ = stream;
}

void DeviceTableStager::stage_row(const Shipment& shipment, std::uint32_t pool, std::uint32_t row,
                                  EntryWriter& writer) {
    const std::uint32_t planes = planes_of(config_.layout);
    for (std::uint32_t plane = 0; plane < planes; ++plane) {
        const std::int32_t* live = shipment.table.row(pool, row, plane);
        const std::size_t base = ((std::size_t{pool} * config_.rows_max + row) * planes + plane) * config_.blocks_max;
        update_shadow(live, shadow_.data() + base, shipment.width, [&](std::size_t block, std::int32_t value) {
            writer.put(static_cast<std::uint32_t>(base + block), value);
        });
    }
}

void DeviceTableStager::gather(const Shipment& shipment, StagingSlot slot) {
    const std::size_t entry_bytes = std::size_t{entries_max_} * sizeof(TableEntry);
    std::memcpy(static_cast<std::byte*>(slot.data()) + entry_bytes, shipment.rows.data(), shipment.rows.size_bytes());
    const std::uint32_t planes = planes_of(config_.layout);
    device_->launch(GatherDeviceRows{.dst = shipment.dst,
                                     .table = reinterpret_cast<const std::int32_t*>(table_.address()),
                                     .table_pool_stride = std::uint64_t{config_.rows_max} * planes * config_.blocks_max,
                                     .table_row_stride = planes * config_.blocks_max,
                                     .row_index = reinterpret_cast<const std::uint32_t*>(
                                         slot.lend_to_kernels(shipment.stream) + entry_bytes),
                                     .pools = shipment.table.pools,
                                     .rows = static_cast<std::uint32_t>(shipment.rows.size()),
                                     .width = shipment.width,
                                     .planes = planes,
                                     .scale = config_.scale},
                    shipment.stream);
    std::move(slot).submit(shipment.stream);
}

}  // namespace kvfix
