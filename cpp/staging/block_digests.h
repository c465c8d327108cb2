// Digests of blocks of one pool, made by a kernel where the blocks lie. Which blocks it shall digest, and what it finds,
// stand in pinned memory, at places that the caller counts: one belongs to the device from a launch until it has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "staging/pinned_memory.h"

namespace kvfix {

// A block consists of `layers` stretches, one behind the other, each digested in `parts`.
struct DigestedPool {
    std::uintptr_t address;
    std::uint64_t slot_bytes;
    std::uint32_t layers;
    std::uint32_t parts;
};

class BlockDigests {
  public:
    BlockDigests(std::shared_ptr<Device> device, const DigestedPool& pool, std::uint32_t places, std::uint64_t key);

    std::uint32_t places() const { return places_; }
    std::uint32_t layers() const { return pool_.layers; }

    // Digests the blocks in these slots as they are behind what the stream has been given so far, into the places from
    // `first` on.
    void launch(std::uint32_t first, std::span<const std::uint32_t> slots, StreamHandle stream);

    // What the kernel has found of `count` blocks, by block and layer.
    std::vector<std::uint64_t> read(std::uint32_t first, std::uint32_t count) const;

  private:
    void require(std::uint32_t first, std::size_t count) const;

    std::shared_ptr<Device> device_;
    DigestedPool pool_;
    std::uint32_t places_;
    std::uint64_t key_;
    PinnedMemory blocks_;
    PinnedMemory sums_;
};

}  // namespace kvfix
