#include "staging/device_table_stager.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "staging/row_diff.h"
#include "staging/shared_lines.h"

namespace kvfix {
namespace {

// Entries that a slot holds. Many changes take several slots, in stream order; all slots together hold them even if every
// entry has changed. Otherwise a ship would wait for its own first slot, and so for the stream, which may be held.
std::uint32_t slot_entries(const StagerConfig& config) {
    constexpr std::size_t kUsual = std::size_t{64} * 1024;
    const std::size_t all = config.elements_max();
    const std::size_t share = all / config.slots + 1 + kPieceMax;  // a slot that turns may lack room for a last piece
    return static_cast<std::uint32_t>(std::min(all, std::max(kUsual, share)));
}

void lower_to(std::atomic<std::uint32_t>& least, std::uint32_t value) {
    std::uint32_t seen = least.load(std::memory_order_relaxed);
    while (value < seen && !least.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

}  // namespace

DeviceTableStager::DeviceTableStager(std::shared_ptr<Device> device, const StagerConfig& config)
    : device_(std::move(device)),
      config_(config),
      entries_max_(slot_entries(config)),
      table_(device_, config.elements_max() * sizeof(std::int32_t)),
      shadow_(config.elements_max()),
      lines_(config),
      ring_(device_, config.slots,
            std::size_t{entries_max_} * sizeof(TableEntry) + std::size_t{config.rows_max} * sizeof(std::uint32_t)) {}

DeviceTableStager::Shipped DeviceTableStager::ship(const Shipment& shipment) {
    order_after_last_use(shipment.stream);
    const bool restarts = lost_;
    lost_ = true;  // until everything has been enqueued
    EntryWriter writer(*device_, ring_, table_.address(), entries_max_, shipment.stream);
    if (restarts) {
        writer.zero_table(shadow_.size());
        std::ranges::fill(shadow_, 0);
    }
    stage_changes(lines_.of(shipment), shipment.width, writer);
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

void DeviceTableStager::stage_changes(std::span<const TableLine> lines, std::uint32_t width, EntryWriter& writer) {
    const auto count = static_cast<std::uint32_t>(lines.size());
    std::atomic<std::uint32_t> left_from = count;  // every line before it has been staged
    share_lines(config_.team.get(), count, width * sizeof(std::int32_t),
                [&](std::uint32_t begin, std::uint32_t end) noexcept {
                    const auto put = [&](std::span<const TableEntry> found) { return writer.put(found); };
                    const std::uint32_t staged = stage_lines(lines.subspan(begin, end - begin), width, put);
                    if (begin + staged != end) {
                        lower_to(left_from, begin + staged);
                    }
                });
    // What is in the full slot is in the shadow too, so this finds the rest.
    stage_lines(lines.subspan(left_from), width, [&](std::span<const TableEntry> found) {
        if (!writer.put(found)) {
            writer.turn();
            check(writer.put(found), "an empty slot has no room for one piece of a row");
        }
        return true;
    });
}

// Compares piece by piece and brings the shadow up to date with what `put` has taken. Returns how many lines it took whole.
template <class Put>
std::uint32_t DeviceTableStager::stage_lines(std::span<const TableLine> lines, std::uint32_t width, const Put& put) {
    const FindChanges find = best_diff();
    TableEntry found[kPieceMax + kDiffSlack];
    for (std::size_t at = 0; at < lines.size(); ++at) {
        for (std::uint32_t block = 0; block < width; block += kPieceMax) {
            const RowPiece piece = piece_of(lines[at], block, width);
            const RowPiece next = width - block > kPieceMax ? piece_of(lines[at], block + kPieceMax, width)
                                  : at + 1 < lines.size()   ? piece_of(lines[at + 1], 0, width)
                                                            : piece;
            const std::size_t count = find(piece, next, found);
            if (count == 0) {
                continue;
            }
            if (!put(std::span(found, count))) {
                return static_cast<std::uint32_t>(at);
            }
            for (const TableEntry& entry : std::span(found, count)) {
                shadow_[entry.index] = entry.value;
            }
        }
    }
    return static_cast<std::uint32_t>(lines.size());
}

RowPiece DeviceTableStager::piece_of(const TableLine& line, std::uint32_t block, std::uint32_t width) const {
    return {.live = line.live + block,
            .shadow = shadow_.data() + line.index + block,
            .count = std::min(width - block, kPieceMax),
            .index = line.index + block};
}

void DeviceTableStager::gather(const Shipment& shipment, StagingSlot slot) {
    const std::size_t entry_bytes = std::size_t{entries_max_} * sizeof(TableEntry);
    std::memcpy(static_cast<std::byte*>(slot.data()) + entry_bytes, shipment.rows.data(), shipment.rows.size_bytes());
    const std::uintptr_t row_index = slot.lend_to_kernels(shipment.stream) + entry_bytes;
    device_->launch(gather_from(table_.address(), config_.rows_max, config_.blocks_max, row_index, shipment, config_),
                    shipment.stream);
    std::move(slot).submit();
}

}  // namespace kvfix
