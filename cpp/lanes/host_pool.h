// The memory of the host tier: slots of one size, one behind the other, in a single mapping of exactly the whole slots that fit the
// bytes asked for. A slot holds a block and, where asked for, a tail directly behind it, which the device never sees. The mapping is
// registered with the device piece by piece, because a driver holds locks of the whole machine while it
// registers. No slot lies across two pieces: a copy must stay within one registration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "process/home_process.h"

namespace kvfix {

struct HostPoolPlan {
    std::size_t block_bytes;
    std::size_t slot_bytes;  // from one slot to the next
    std::size_t slots;
    std::size_t slots_per_piece;

    std::size_t bytes() const { return slots * slot_bytes; }
    std::size_t pieces() const { return (slots + slots_per_piece - 1) / slots_per_piece; }
};

// Pieces of at most piece_bytes_max (but of one slot at least) that begin on pages. Slots with a tail begin on cache lines, those
// without lie as close as their blocks. Throws std::invalid_argument where not a single slot fits.
HostPoolPlan plan_host_pool(std::size_t host_bytes, std::size_t block_bytes, std::size_t tail_bytes,
                            std::size_t piece_bytes_max, std::size_t page_bytes);

struct HostPoolOptions {
    std::optional<unsigned> numa_node;  // where the pages shall be, as far as it has them
    bool huge_pages = true;             // asked for; the kernel decides
    bool shared = false;                // another process may map the same pages, through `descriptor`
};

class HostPool {
  public:
    // Throws DeviceError; nothing stays mapped or registered then.
    HostPool(std::shared_ptr<Device> device, const HostPoolPlan& plan, const HostPoolOptions& options);
    HostPool(const HostPool&) = delete;
    HostPool& operator=(const HostPool&) = delete;
    ~HostPool();

    const HostPoolPlan& plan() const { return plan_; }
    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data_); }  // of slot 0
    std::size_t bytes_pinned() const { return bytes_pinned_; }
    bool numa_bound() const { return numa_bound_; }
    int descriptor() const { return descriptor_; }  // of the pages where they are shared, or -1
    // Whether kernels find every slot at the address that it has here; copies by DMA find it anyway.
    bool at_same_address_on_device() const { return at_same_address_; }

    // Of each block's content (digest_of), the same on every machine. The caller makes sure that nothing writes the slots.
    std::vector<std::uint64_t> digests(std::span<const std::uint64_t> slots, std::uint64_t key) const;
    // Gives everything back. Memory that the device does not let go is kept, and still counted. A child has none of the
    // memory, and perhaps its own at these addresses: there only the descriptor is closed.
    void close();
    // The device may still write: never give it back.
    void abandon();

  private:
    void map(bool shared);
    void put_shared_pages(std::size_t bytes);
    void bind_to(unsigned node);
    void pin();

    const HomeProcess home_;
    const std::shared_ptr<Device> device_;
    const HostPoolPlan plan_;
    std::uint8_t* data_ = nullptr;
    int descriptor_ = -1;
    std::vector<std::span<std::uint8_t>> pinned_;
    std::size_t bytes_pinned_ = 0;
    bool numa_bound_ = false;
    bool at_same_address_ = true;
};

// The digest of kernels/digest.h, as the kernel DigestBlocks makes it.
std::uint64_t digest_of(std::span<const std::uint8_t> bytes, std::uint64_t key);

}  // namespace kvfix
