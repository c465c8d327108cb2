// Changed entries on their way into the device table: collected in slots of a ring, applied by a kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "staging/staging_ring.h"

namespace kvfix {

class EntryWriter {
  public:
    // Takes a slot, which has room for `entries_max` entries, and more at its end for its owner's use.
    EntryWriter(Device& device, StagingRing& ring, std::uintptr_t table, std::uint32_t entries_max, StreamHandle stream)
        : device_(device),
          ring_(ring),
          table_(reinterpret_cast<std::int32_t*>(table)),
          entries_max_(entries_max),
          stream_(stream),
          slot_(ring.take()),
          entries_(static_cast<TableEntry*>(slot_->data())) {}

    // All of them or none: false when the slot has no room for them. May be called from several threads at once.
    bool put(std::span<const TableEntry> entries) noexcept {
        const auto count = static_cast<std::uint32_t>(entries.size());
        std::uint32_t at = count_.load(std::memory_order_relaxed);
        do {
            if (count > entries_max_ - at) {
                return false;
            }
        } while (!count_.compare_exchange_weak(at, at + count, std::memory_order_relaxed));
        std::memcpy(entries_ + at, entries.data(), entries.size_bytes());
        return true;
    }

    // The rest is for one thread, with no put() going on.

    // Before any entry. The slot is lent so that this has an end too: if nothing else comes, the slot waits for the stream.
    void zero_table(std::uint64_t elements) {
        slot_->lend(stream_);
        device_.launch(FillWords{.words = reinterpret_cast<std::uint32_t*>(table_), .count = elements, .value = 0},
                       stream_);
    }
    // Sends what is there and goes on with the next slot.
    void turn() {
        apply();
        std::move(*slot_).submit();
        slot_.reset();
        slot_.emplace(ring_.take());
        entries_ = static_cast<TableEntry*>(slot_->data());
    }
    // Sends the rest; the slot's end is free for its owner's use.
    StagingSlot finish() {
        apply();
        return std::move(*slot_);
    }
    std::uint64_t total() const { return total_; }  // sent

  private:
    void apply() {
        const std::uint32_t count = count_.exchange(0, std::memory_order_relaxed);
        if (count != 0) {
            device_.launch(ApplyEntries{.table = table_,
                                        .entries = reinterpret_cast<const TableEntry*>(slot_->lend_to_kernels(stream_)),
                                        .count = count},
                           stream_);
            total_ += count;
        }
    }

    Device& device_;
    StagingRing& ring_;
    std::int32_t* table_;  // on the device
    std::uint32_t entries_max_;
    StreamHandle stream_;
    std::optional<StagingSlot> slot_;
    TableEntry* entries_;  // of the slot
    std::atomic<std::uint32_t> count_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace kvfix
