// A fixed number of pinned slots. A slot is taken (its last use by the device has ended), filled, submitted (a fence ends the
// new use), and comes round again. The ring never grows: when the next slot is still in use the caller waits, and that is counted.
//
//   StagingSlot slot = ring.take();
//   ... write slot.data() ...
//   device.copy({dst, slot.lend(stream), bytes}, stream);   // the address for the device comes with the promise to end its use
//   std::move(slot).submit(stream);
//
// A slot that is destroyed without submit() goes back: at once if it was not lent, else after the stream it was lent to has been
// waited for. If even that fails nobody knows who still reads it, and it is never handed out again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "staging/fence.h"
#include "staging/pinned_memory.h"

namespace kvfix {

struct RingStats {
    std::uint64_t taken = 0;
    std::uint64_t waits = 0;
    std::uint64_t wait_ns = 0;
};

class StagingRing;

class StagingSlot {
  public:
    StagingSlot(StagingSlot&& other) noexcept
        : ring_(std::exchange(other.ring_, nullptr)),
          index_(other.index_),
          lent_(other.lent_),
          lent_to_(other.lent_to_) {}
    StagingSlot& operator=(StagingSlot&&) = delete;
    ~StagingSlot();

    void* data() const;
    std::size_t bytes() const;
    // For copies, and for kernels. From here on the device may read the slot.
    std::uintptr_t lend(StreamHandle stream);
    std::uintptr_t lend_to_kernels(StreamHandle stream);
    // What has been enqueued on the stream ends this use.
    void submit(StreamHandle stream) &&;

  private:
    friend class StagingRing;
    StagingSlot(StagingRing& ring, std::size_t index) : ring_(&ring), index_(index) {}

    StagingRing* ring_;
    std::size_t index_;
    bool lent_ = false;
    StreamHandle lent_to_;
};

// Not thread-safe; its owner's lock covers it.
class StagingRing {
  public:
    StagingRing(const std::shared_ptr<Device>& device, std::size_t slots, std::size_t slot_bytes);
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;
    // Waits for every pending slot. Where waiting fails, the slots are kept for good.
    ~StagingRing();

    StagingSlot take();
    void drain();
    const RingStats& stats() const { return stats_; }
    std::size_t slot_bytes() const { return slot_bytes_; }
    // Ends the use that was submitted last. Null before the first.
    const Fence* last_fence() const { return last_ == nullptr ? nullptr : &last_->fence; }

  private:
    friend class StagingSlot;
    struct Slot {
        Slot(const std::shared_ptr<Device>& device, std::size_t bytes) : memory(device, bytes), fence(device) {}
        PinnedMemory memory;
        Fence fence;
        bool taken = false;
        bool lost = false;  // lent, and its end is unknown
    };

    std::shared_ptr<Device> device_;
    std::size_t slot_bytes_;
    std::unique_ptr<std::deque<Slot>> slots_;
    std::size_t next_ = 0;
    const Slot* last_ = nullptr;
    RingStats stats_;
};

}  // namespace kvfix
