#include "staging/block_digests.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {

BlockDigests::BlockDigests(std::shared_ptr<Device> device, const DigestedPool& pool, std::uint32_t places,
                           std::uint64_t key)
    : device_(std::move(device)),
      pool_(pool),
      places_(places),
      key_(key),
      blocks_(device_, places * sizeof(std::uint64_t)),
      sums_(device_, std::size_t{places} * pool.layers * pool.parts * sizeof(std::uint64_t)) {}

void BlockDigests::launch(std::uint32_t first, std::span<const std::uint32_t> slots, StreamHandle stream) {
    require(first, slots.size());
    auto* const addresses = static_cast<std::uint64_t*>(blocks_.data()) + first;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        addresses[i] = pool_.address + slots[i] * pool_.slot_bytes;
    }
    const std::size_t sums_per_block = std::size_t{pool_.layers} * pool_.parts;
    device_->launch(
        DigestBlocks{.blocks = reinterpret_cast<const std::uint64_t*>(blocks_.device_address()) + first,
                     .sums = reinterpret_cast<std::uint64_t*>(sums_.device_address()) + first * sums_per_block,
                     .count = static_cast<std::uint32_t>(slots.size()),
                     .layers = pool_.layers,
                     .parts = pool_.parts,
                     .layer_bytes = pool_.slot_bytes / pool_.layers,
                     .key = key_},
        stream);
}

std::vector<std::uint64_t> BlockDigests::read(std::uint32_t first, std::uint32_t count) const {
    require(first, count);
    std::vector<std::uint64_t> by_layer(std::size_t{count} * pool_.layers);
    const std::size_t begin = std::size_t{first} * pool_.layers;
    const auto* part = static_cast<const std::uint64_t*>(sums_.data()) + begin * pool_.parts;
    for (std::uint64_t& sum : by_layer) {
        sum = std::accumulate(part, part + pool_.parts, std::uint64_t{0});
        part += pool_.parts;
    }
    return by_layer;
}

void BlockDigests::require(std::uint32_t first, std::size_t count) const {
    if (first > places_ || count > places_ - first) {
        throw std::invalid_argument(std::to_string(count) + " blocks from place " + std::to_string(first) + " on, of " +
                                    std::to_string(places_));
    }
}

}  // namespace kvfix
