#include "staging/digest_ring.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {

DigestRing::DigestRing(std::shared_ptr<Device> device, StreamHandle stream, std::span<const DigestedPool> pools,
                       std::uint32_t places, std::uint64_t key)
    : device_(std::move(device)), stream_(stream), places_(places), key_(key), free_(places) {
    for (const DigestedPool& pool : pools) {
        pools_.push_back(std::make_unique<Pool>(device_, pool, places));
        layers_ += pool.layers;
    }
}

void DigestRing::send(std::span<const std::uint32_t> slots) {
    if (slots.size() > free_) {
        throw std::invalid_argument(std::to_string(slots.size()) + " blocks for a ring in which " +
                                    std::to_string(free_) + " of " + std::to_string(places_) + " places are free");
    }
    if (slots.empty()) {
        return;
    }
    if (idle_.empty()) {
        idle_.push_back(std::make_unique<Fence>(device_));
    }
    const std::size_t until_end = std::min<std::size_t>(slots.size(), places_ - next_);
    for (const auto& pool : pools_) {
        launch(*pool, next_, slots.first(until_end));
        if (until_end < slots.size()) {
            launch(*pool, 0, slots.subspan(until_end));
        }
    }
    idle_.back()->raise(stream_);
    const auto blocks = static_cast<std::uint32_t>(slots.size());
    sent_.push_back({.blocks = blocks, .fence = std::move(idle_.back())});
    idle_.pop_back();
    next_ = (next_ + blocks) % places_;
    free_ -= blocks;
}

std::vector<ArrivedDigests> DigestRing::arrived() {
    const auto end = std::ranges::find_if_not(sent_, [](const Sent& each) { return each.fence->passed(); });
    std::vector<ArrivedDigests> found;
    for (auto each = sent_.begin(); each != end; ++each) {
        found.push_back(read(each->blocks));
        free_ += each->blocks;
        idle_.push_back(std::move(each->fence));
    }
    sent_.erase(sent_.begin(), end);
    return found;
}

void DigestRing::launch(const Pool& pool, std::uint32_t first, std::span<const std::uint32_t> slots) {
    auto* const addresses = static_cast<std::uint64_t*>(pool.blocks.data()) + first;
    std::ranges::transform(slots, addresses,
                           [&](std::uint32_t slot) { return pool.where.address + slot * pool.where.slot_bytes; });
    device_->launch(DigestBlocks{.blocks = reinterpret_cast<const std::uint64_t*>(pool.blocks.device_address()) + first,
                                 .sums = reinterpret_cast<std::uint64_t*>(pool.sums.device_address()) +
                                         first * pool.sums_per_block(),
                                 .count = static_cast<std::uint32_t>(slots.size()),
                                 .layers = pool.where.layers,
                                 .parts = pool.where.parts,
                                 .layer_bytes = pool.where.slot_bytes / pool.where.layers,
                                 .key = key_},
                    stream_);
}

// The oldest ones that are in the ring.
ArrivedDigests DigestRing::read(std::uint32_t blocks) {
    ArrivedDigests found{.blocks = blocks, .by_layer = {}};
    found.by_layer.reserve(std::size_t{blocks} * layers_);
    const std::uint32_t first = (next_ + free_) % places_;
    for (std::uint32_t block = 0; block < blocks; ++block) {
        for (const auto& pool : pools_) {
            const std::size_t place = (first + block) % places_;
            const auto* part = static_cast<const std::uint64_t*>(pool->sums.data()) + place * pool->sums_per_block();
            for (std::uint32_t layer = 0; layer < pool->where.layers; ++layer, part += pool->where.parts) {
                found.by_layer.push_back(std::accumulate(part, part + pool->where.parts, std::uint64_t{0}));
            }
        }
    }
    return found;
}

}  // namespace kvfix
