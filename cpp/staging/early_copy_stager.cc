#include "staging/early_copy_stager.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvfix {
namespace {

using std::chrono::nanoseconds;

// The number of shipments that go as snapshots after a copy was late. Another program is moving blocks over the same
// copy engine then, and for longer than one of our shipments takes.
constexpr std::uint32_t kDetour = 64;
// Rows of up to this many bytes, both planes, travel as they lie in the table, in one piece for each pool. The driver
// takes 0.13 us of the CPU for each line that it has to pick out of a table, in which the bus moves 6 KiB.
constexpr std::size_t kWholeRowBytesMax = 8192;
// If the range holds more than this many times the rows of the batch, it is not worth copying.
constexpr std::size_t kRangeFactorMax = 4;

// Several times what an idle engine takes, but less than it takes to read the rows from memory and wait for that.
nanoseconds usual_limit(std::size_t bytes) { return std::chrono::microseconds(100) + nanoseconds(bytes / 10); }

std::size_t extent_bytes(const HostTable& table) {
    const std::size_t elements =
        (table.pools - 1) * table.pool_stride + (table.rows - 1) * table.row_stride + table.plane_stride + table.blocks;
    return elements * sizeof(std::int32_t);
}

}  // namespace

EarlyCopyStager::EarlyCopyStager(std::shared_ptr<Device> device, const StagerConfig& config)
    : device_(std::move(device)),
      config_(config),
      copies_(device_->create_stream()),
      ring_(device_, config.slots, std::size_t{config.rows_max} * sizeof(std::uint32_t)) {
    const std::size_t whole_rows = std::size_t{config.num_pools} * config.rows_max * 2 * config.blocks_max;
    const bool has_whole_rows = std::size_t{2} * config.blocks_max * sizeof(std::int32_t) <= kWholeRowBytesMax;
    buffer_elements_ = has_whole_rows ? whole_rows : config.elements_max();
    for (std::uint32_t slot = 0; slot < config.slots; ++slot) {
        buffers_.emplace_back(device_, buffer_elements_ * sizeof(std::int32_t));
    }
}

EarlyCopyStager::~EarlyCopyStager() {
    try {
        device_->destroy_stream(copies_);  // waits for it
    } catch (const DeviceError&) {         // the memory decides by itself whether it can be given back
    }
}

std::uint64_t EarlyCopyStager::ship(const Shipment& shipment) {
    const auto [low, high] = std::ranges::minmax(shipment.rows);
    const Range range{low, high - low + 1};
    if (broken_ || !fits(shipment.table) || range.rows > kRangeFactorMax * shipment.rows.size()) {
        return 0;
    }
    if (detour_ != 0) {
        --detour_;
        return 0;
    }
    StagingSlot slot = ring_.take();
    Buffer& buffer = buffers_[slot.index()];
    const Layout layout = layout_of(shipment, range);
    const std::size_t bytes = shipment.table.pools * layout.pool_elements * sizeof(std::int32_t);
    try {
        if (!buffer.copied.passed()) {
            return 0;  // it was late before, and still is
        }
        copy(shipment, range, layout, buffer);
        buffer.copied.raise(copies_);
        if (!shipment.lent && !arrives(buffer.copied, limit_of(bytes))) {
            count_late();
            return 0;
        }
    } catch (const DeviceError&) {
        broken_ = true;
        return 0;
    }
    if (shipment.lent) {
        lent_ = {.copied = &buffer.copied, .late_from = limit_of(bytes)};
        device_->make_wait(shipment.stream, buffer.copied.event());
    }
    gather(shipment, range, layout, buffer, std::move(slot));
    return bytes;
}

void EarlyCopyStager::settle() {
    const Lent lent = std::exchange(lent_, {});
    if (lent.copied != nullptr && !arrives(*lent.copied, lent.late_from)) {
        count_late();
        lent.copied->wait();
    }
}

void EarlyCopyStager::drain() {
    settle();
    ring_.drain();
    device_->synchronize(copies_);
}

// Asks the device once for each table that stays where it is.
bool EarlyCopyStager::fits(const HostTable& table) {
    if (table != judged_) {
        judged_fit_ = table.row_stride == 2 * table.plane_stride && is_pinned(table);
        judged_ = table;
    }
    return judged_fit_;
}

bool EarlyCopyStager::is_pinned(const HostTable& table) const {
    auto* const first = reinterpret_cast<char*>(const_cast<std::int32_t*>(table.data));
    try {
        device_->device_address(first);
        device_->device_address(first + extent_bytes(table) - 1);
        return true;
    } catch (const DeviceError&) {
        return false;
    }
}

EarlyCopyStager::Layout EarlyCopyStager::layout_of(const Shipment& shipment, Range range) const {
    const HostTable& table = shipment.table;
    const std::uint32_t planes = planes_of(config_.layout);
    const std::size_t whole = (range.rows - 1) * table.row_stride + (planes - 1) * table.plane_stride + shipment.width;
    if (table.row_stride * sizeof(std::int32_t) <= kWholeRowBytesMax && table.pools * whole <= buffer_elements_) {
        return {.as_in_table = true, .row_elements = table.row_stride, .pool_elements = whole};
    }
    const std::size_t row = std::size_t{planes} * shipment.width;
    return {.as_in_table = false, .row_elements = row, .pool_elements = range.rows * row};
}

// Line by line: with v1 both planes of a row are lines at the same distance. With v2 only the first plane travels.
void EarlyCopyStager::copy(const Shipment& shipment, Range range, const Layout& layout, const Buffer& buffer) {
    const HostTable& table = shipment.table;
    const std::size_t line_bytes = std::size_t{shipment.width} * sizeof(std::int32_t);
    const std::size_t distance =
        (planes_of(config_.layout) == 2 ? table.plane_stride : table.row_stride) * sizeof(std::int32_t);
    for (std::uint32_t pool = 0; pool < table.pools; ++pool) {
        const std::size_t pool_bytes = layout.pool_elements * sizeof(std::int32_t);
        const std::uintptr_t dst = buffer.memory.address() + pool * pool_bytes;
        const auto src = reinterpret_cast<std::uintptr_t>(table.row(pool, range.first, 0));
        if (layout.as_in_table || distance == line_bytes) {
            device_->copy({dst, src, pool_bytes}, copies_);
            continue;
        }
        device_->copy_rows({.dst = dst,
                            .dst_pitch = line_bytes,
                            .src = src,
                            .src_pitch = distance,
                            .row_bytes = line_bytes,
                            .rows = pool_bytes / line_bytes},
                           copies_);
    }
}

EarlyCopyStager::Clock::time_point EarlyCopyStager::limit_of(std::size_t bytes) const {
    return Clock::now() + config_.late_after.value_or(usual_limit(bytes));
}

bool EarlyCopyStager::arrives(Fence& copied, Clock::time_point until) {
    while (!copied.passed()) {
        if (Clock::now() >= until) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

void EarlyCopyStager::gather(const Shipment& shipment, Range range, const Layout& layout, const Buffer& buffer,
                             StagingSlot slot) {
    std::ranges::transform(shipment.rows, static_cast<std::uint32_t*>(slot.data()),
                           [&](std::uint32_t row) { return row - range.first; });
    const std::uintptr_t row_index = slot.lend_to_kernels(shipment.stream);
    device_->launch(GatherDeviceRows{.dst = shipment.dst,
                                     .table = reinterpret_cast<const std::int32_t*>(buffer.memory.address()),
                                     .table_pool_stride = layout.pool_elements,
                                     .table_row_stride = static_cast<std::uint32_t>(layout.row_elements),
                                     .row_index = reinterpret_cast<const std::uint32_t*>(row_index),
                                     .pools = shipment.table.pools,
                                     .rows = static_cast<std::uint32_t>(shipment.rows.size()),
                                     .width = shipment.width,
                                     .planes = planes_of(config_.layout),
                                     .scale = config_.scale},
                    shipment.stream);
    std::move(slot).submit();
}

void EarlyCopyStager::count_late() {
    ++late_;
    detour_ = kDetour;
}

}  // namespace kvfix
