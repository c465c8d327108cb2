// A fixed number of pinned slots. A slot is taken (its last use by the device has ended), filled, submitted (a fence
// ends the new use), and comes round again. The ring never grows. If the next slot is still in use the caller waits,
// and the wait is counted.
//
//   StagingSlot slot = ring.take();
//   ... write slot.data() ...
//   device.copy({dst, slot.lend(stream), bytes}, stream);   // the address for the device comes with the promise to end its use
//   std::move(slot).submit();
//
// A slot that is destroyed without submit() goes back: at once if it was not lent, else after a wait for the stream
// that it was lent to. If that wait or the fence fails, something may still read the slot. Then it is never handed out
// again, and the ring goes on with the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "staging/fence.h"
#include "staging/pinned_memory.h"

namespace kvfix {

struct RingStats {
    std::uint64_t taken = 0;
    std::uint64_t waits = 0;    // begun
    std::uint64_t wait_ns = 0;  // time of waits that have ended
};

// Only the ring's owner writes them. Anyone may read them at any time, even during a wait or after the ring is gone.
class RingCounters {
  public:
    void count_taken() { add(taken_, 1); }
    void count_wait() { add(waits_, 1); }
    void count_wait_ns(std::uint64_t ns) { add(wait_ns_, ns); }
    RingStats read() const { return {taken_.load(kOrder), waits_.load(kOrder), wait_ns_.load(kOrder)}; }

  private:
    static constexpr auto kOrder = std::memory_order_relaxed;
    static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) { counter.fetch_add(amount, kOrder); }

    std::atomic<std::uint64_t> taken_ = 0;
    std::atomic<std::uint64_t> waits_ = 0;
    std::atomic<std::uint64_t> wait_ns_ = 0;
};

class StagingRing;

class StagingSlot {
  public:
    StagingSlot(StagingSlot&& other) noexcept
        : ring_(std::exchange(other.ring_, nullptr)), index_(other.index_), lent_to_(other.lent_to_) {}
    StagingSlot& operator=(StagingSlot&&) = delete;
    ~StagingSlot();

    void* data() const;
    std::size_t bytes() const;
    std::size_t index() const { return index_; }  // below the ring's number of slots
    // The slot's address for copies and kernels. From here on the device may read the slot, on this stream and on no
    // other.
    std::uintptr_t lend(StreamHandle stream);
    std::uintptr_t lend_to_kernels(StreamHandle stream);
    // Ends this use with everything that has been enqueued on the stream that the slot was lent to.
    void submit() &&;

  private:
    friend class StagingRing;
    StagingSlot(StagingRing& ring, std::size_t index) : ring_(&ring), index_(index) {}

    StagingRing* ring_;
    std::size_t index_;
    std::optional<StreamHandle> lent_to_;
};

// Not thread-safe; the owner's lock covers it.
class StagingRing {
  public:
    StagingRing(const std::shared_ptr<Device>& device, std::size_t slots, std::size_t slot_bytes);
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;
    // Waits for every pending slot. A slot whose use may not have ended is kept for good.
    ~StagingRing();

    // Throws once if the slot's last use failed, and if no slot is left.
    StagingSlot take();
    // Waits for every pending slot, then throws the first failure.
    void drain();
    // Removes the slots whose use is known to have failed. Returns true if there were any.
    bool drop_failed();
    RingStats stats() const { return counters_->read(); }
    std::shared_ptr<const RingCounters> counters() const { return counters_; }
    std::size_t slot_bytes() const { return slot_bytes_; }
    // The fence of the use that was submitted last. Null before the first use, and if that use has failed.
    const Fence* last_fence() const { return last_ == nullptr || last_->lost ? nullptr : &last_->fence; }

  private:
    friend class StagingSlot;
    struct Slot {
        Slot(const std::shared_ptr<Device>& device, std::size_t bytes) : memory(device, bytes), fence(device) {}
        PinnedMemory memory;
        Fence fence;
        bool taken = false;
        bool lost = false;  // its last use failed, or may not have ended
    };

    std::size_t next_usable() const;
    void await(Slot& slot);
    void look_ahead(std::size_t index);

    std::shared_ptr<Device> device_;
    std::size_t slot_bytes_;
    std::vector<std::unique_ptr<Slot>> slots_;
    std::size_t next_ = 0;
    const Slot* last_ = nullptr;
    std::shared_ptr<RingCounters> counters_ = std::make_shared<RingCounters>();
};

}  // namespace kvfix
