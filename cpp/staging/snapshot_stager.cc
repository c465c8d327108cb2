#include "staging/snapshot_stager.h"

#include "staging/table_rows.h"

namespace kvfix {
namespace {

// Expands one row of page numbers into the two final planes that upstream's V2 kernel would write. Wraps around as the
// GPU's integers do.
void expand_row(const std::int32_t* pages, std::uint32_t width, std::int32_t scale, std::int32_t v_offset,
                std::int32_t* out) {
    for (std::uint32_t block = 0; block < width; ++block) {
        const bool bad = pages[block] == kBadPage;
        const std::uint32_t k = static_cast<std::uint32_t>(pages[block]) * static_cast<std::uint32_t>(scale);
        out[block] = bad ? 0 : static_cast<std::int32_t>(k);
        out[width + block] = bad ? 0 : static_cast<std::int32_t>(k + static_cast<std::uint32_t>(v_offset));
    }
}

}  // namespace

SnapshotStager::SnapshotStager(std::shared_ptr<Device> device, const StagerConfig& config)
    : device_(std::move(device)),
      config_(config),
      expands_on_device_(config.layout == OffsetLayout::v2 && device_->has_kernels()),
      ring_(device_, config.slots,
            std::size_t{config.num_pools} * config.rows_max * config.blocks_max * (expands_on_device_ ? 1 : 2) *
                sizeof(std::int32_t)) {}

std::uint64_t SnapshotStager::ship(const Shipment& shipment) {
    StagingSlot slot = ring_.take();
    expands_on_device_ ? ship_pages(shipment, slot) : ship_final_planes(shipment, slot);
    std::move(slot).submit();
    return std::uint64_t{shipment.table.pools} * shipment.rows.size() * shipment.width * (expands_on_device_ ? 1 : 2) *
           sizeof(std::int32_t);
}

void SnapshotStager::ship_final_planes(const Shipment& shipment, StagingSlot& slot) {
    const std::uint32_t width = shipment.width;
    const std::size_t row_bytes = std::size_t{width} * sizeof(std::int32_t);
    auto* const slot_words = static_cast<std::int32_t*>(slot.data());
    for_each_row(shipment.table, shipment.rows, row_bytes,
                 [&](std::size_t line, std::uint32_t pool, std::uint32_t row) {
                     std::int32_t* const out = slot_words + line * 2 * width;
                     if (config_.layout == OffsetLayout::v2) {
                         expand_row(shipment.table.row(pool, row, 0), width, config_.scale.scale[pool],
                                    config_.scale.v_offset[pool], out);
                     } else {
                         copy_past_caches(out, shipment.table.row(pool, row, 0), row_bytes);
                         copy_past_caches(out + width, shipment.table.row(pool, row, 1), row_bytes);
                     }
                 });
    const std::uintptr_t staged = slot.lend(shipment.stream);
    const std::size_t rows = shipment.rows.size() * 2;
    for (std::uint32_t pool = 0; pool < shipment.table.pools; ++pool) {
        const auto dst = reinterpret_cast<std::uintptr_t>(shipment.dst.data + pool * shipment.dst.pool_stride);
        device_->copy_rows({.dst = dst,
                            .dst_pitch = std::size_t{shipment.dst.blocks} * sizeof(std::int32_t),
                            .src = staged + pool * rows * row_bytes,
                            .src_pitch = row_bytes,
                            .row_bytes = row_bytes,
                            .rows = rows},
                           shipment.stream);
    }
}

void SnapshotStager::ship_pages(const Shipment& shipment, StagingSlot& slot) {
    const std::size_t row_bytes = std::size_t{shipment.width} * sizeof(std::int32_t);
    auto* const slot_words = static_cast<std::int32_t*>(slot.data());
    for_each_row(shipment.table, shipment.rows, row_bytes,
                 [&](std::size_t line, std::uint32_t pool, std::uint32_t row) {
                     copy_past_caches(slot_words + line * shipment.width, shipment.table.row(pool, row, 0), row_bytes);
                 });
    device_->launch(ExpandRows{.dst = shipment.dst,
                               .staged = reinterpret_cast<const std::int32_t*>(slot.lend_to_kernels(shipment.stream)),
                               .pools = shipment.table.pools,
                               .rows = static_cast<std::uint32_t>(shipment.rows.size()),
                               .width = shipment.width,
                               .scale = config_.scale},
                    shipment.stream);
}

}  // namespace kvfix
