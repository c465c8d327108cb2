// Digests of blocks as the stream's work so far has left them: a kernel makes them where the blocks lie. Which blocks it
// shall digest, and what it finds, stand in a ring of places in pinned memory, one for each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "staging/fence.h"
#include "staging/pinned_memory.h"

namespace kvfix {

// A block consists of `layers` stretches, one behind the other, each digested in `parts`.
struct DigestedPool {
    std::uintptr_t address;
    std::uint64_t slot_bytes;
    std::uint32_t layers;
    std::uint32_t parts;
};

// Digests of the blocks that were sent together: those of all layers of all pools, one block behind the other.
struct ArrivedDigests {
    std::uint32_t blocks;
    std::vector<std::uint64_t> by_layer;
};

// Not for two threads at once. Its end waits for the stream.
class DigestRing {
  public:
    // A block has the same slot in each of the pools.
    DigestRing(std::shared_ptr<Device> device, StreamHandle stream, std::span<const DigestedPool> pools,
               std::uint32_t places, std::uint64_t key);

    std::uint32_t places() const { return places_; }
    std::uint32_t layers() const { return layers_; }  // of a block
    std::uint32_t free() const { return free_; }

    // Throws if there are more than are free, and sends none. If the device refuses a call, what the ring holds may be
    // in use without a fence behind it: nothing may be sent any more.
    void send(std::span<const std::uint32_t> slots);
    // What has arrived since the last call, in the order in which it was sent. Throws if the stream's work has failed,
    // and again when it is asked again.
    std::vector<ArrivedDigests> arrived();
    // Whether the device is done with the memory.
    bool done() { return sent_.empty() || sent_.back().fence->passed(); }

  private:
    struct Pool {
        Pool(const std::shared_ptr<Device>& device, const DigestedPool& pool, std::uint32_t places)
            : where(pool),
              blocks(device, places * sizeof(std::uint64_t)),
              sums(device, places * sums_per_block() * sizeof(std::uint64_t)) {}
        std::size_t sums_per_block() const { return std::size_t{where.layers} * where.parts; }

        DigestedPool where;
        PinnedMemory blocks;
        PinnedMemory sums;
    };
    struct Sent {
        std::uint32_t blocks;
        std::unique_ptr<Fence> fence;  // behind the kernel
    };

    void launch(const Pool& pool, std::uint32_t first, std::span<const std::uint32_t> slots);
    ArrivedDigests read(std::uint32_t blocks);

    std::shared_ptr<Device> device_;
    StreamHandle stream_;
    std::vector<std::unique_ptr<Pool>> pools_;
    std::uint32_t layers_ = 0;
    std::uint32_t places_;
    std::uint64_t key_;
    std::uint32_t next_ = 0;  // place
    std::uint32_t free_;
    std::deque<Sent> sent_;
    std::vector<std::unique_ptr<Fence>> idle_;
};

}  // namespace kvfix
