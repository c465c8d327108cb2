// Pins, from any thread: a pinned block keeps its slot and its bytes in the tier it was pinned in.
#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/block_manager.h"
#include "core/pause_point.h"

namespace kvfix {

BlockManager::BlockPlace BlockManager::place_of(BlockId id) const {
    for (const auto& pool : pools_) {
        if (id >= pool->block_id_base && id - pool->block_id_base < pool->store.size()) {
            const auto block = static_cast<BlockIndex>(id - pool->block_id_base);
            if (pool->store[block].has(kPrimary) || pool->store[block].has(kHost)) {
                return {pool.get(), block};
            }
        }
    }
    throw std::invalid_argument("block " + std::to_string(id) +
                                " holds nothing: evicted or freed since, or never a block id");
}

std::vector<BlockId> BlockManager::pin_blocks(RequestId id) {
    const ManagerGuard guard(mutex_);
    const Sequence& sequence = sequences_.at(id);
    check_held_settled(sequence);
    return pin_held(sequence);
}

void BlockManager::check_held_settled(const Sequence& sequence) const {
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        sequence.windows[window].for_each([&](BlockIndex block) {
            if (!pools_[window]->store[block].settled(kPrimary)) {
                throw BlockInFlight(id_of(*pools_[window], block));
            }
        });
    }
}

std::vector<BlockId> BlockManager::pin_held(const Sequence& sequence) {
    std::vector<BlockId> ids;
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        WindowPool& pool = *pools_[window];
        sequence.windows[window].for_each([&](BlockIndex block) {
            pool.pin(block, kPrimary);
            ids.push_back(id_of(pool, block));
        });
    }
    return ids;
}

std::vector<PinnedSlot> BlockManager::pin_blocks_by_id(std::span<const BlockId> ids) {
    const ManagerGuard guard(mutex_);
    std::vector<std::pair<BlockPlace, std::size_t>> places;
    for (const BlockId id : ids) {
        const BlockPlace place = place_of(id);
        const Block& block = place.pool->store[place.block];
        if (!block.settled(kPrimary) && !block.settled(kHost)) {
            throw BlockInFlight(id);
        }
        places.emplace_back(place, block.settled(kPrimary) ? kPrimary : kHost);
    }
    KVFIX_PAUSE("pin.found");
    std::vector<PinnedSlot> out;
    for (const auto& [place, tier] : places) {
        place.pool->pin(place.block, tier);
        out.push_back({place.pool->store[place.block].slot[tier], static_cast<Tier>(tier)});
    }
    return out;
}

void BlockManager::unpin_blocks_by_id(std::span<const BlockId> ids, std::optional<Tier> tier) {
    const ManagerGuard guard(mutex_);
    std::map<std::pair<BlockId, std::size_t>, std::uint32_t> wanted;
    std::vector<std::pair<BlockPlace, std::size_t>> places;
    for (const BlockId id : ids) {
        const BlockPlace place = place_of(id);
        const Block& block = place.pool->store[place.block];
        const std::string who = "block " + std::to_string(id);
        if (!tier && block.pins[kPrimary] != 0 && block.pins[kHost] != 0) {
            throw std::invalid_argument(who + " is pinned in both tiers: say which with tier=");
        }
        const std::size_t from =
            tier ? static_cast<std::size_t>(*tier) : (block.pins[kPrimary] != 0 ? kPrimary : kHost);
        const std::uint32_t pins = ++wanted[{id, from}];
        if (pins > block.pins[from]) {
            throw std::invalid_argument(who + " is unpinned " + std::to_string(pins) + " times but pinned " +
                                        std::to_string(block.pins[from]) + " times in " +
                                        (from == kPrimary ? "primary" : "host"));
        }
        places.emplace_back(place, from);
    }
    KVFIX_PAUSE("unpin.checked");
    for (const auto& [place, from] : places) {
        place.pool->unpin(place.block, from);
    }
}

std::vector<std::optional<PinnedBlock>> BlockManager::find_and_pin_blocks_by_hash(std::span<const BlockHash> hashes,
                                                                                  std::optional<Tier> tier,
                                                                                  bool stop_on_miss,
                                                                                  WindowSize window_size,
                                                                                  const RequestPtr& request) {
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        if (hashes[i].second == 0 && config_.hash_bits == kBlockHashBits) {
            throw std::invalid_argument(
                "hashes: number " + std::to_string(i) +
                " has no second half: a block hash has 128 bits, and the 64 that some formats of events carry do not "
                "name a block for certain");
        }
    }
    const auto positions = request ? positions_of(hashes, *request) : std::vector<std::uint32_t>{};
    const ManagerGuard guard(mutex_);
    WindowPool& pool = *pools_[find_window(window_size)];
    std::vector<BlockIndex> on_path;
    if (request) {
        on_path = find_on_path(pool, *request, positions);
    } else {
        pool.tree.keep_hashes();
    }
    std::vector<std::optional<PinnedBlock>> out(hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        const BlockIndex block = request ? on_path[i] : pool.tree.find_unambiguous(hashes[i]);
        const auto serves = [&](Tier candidate) {
            return (!tier || *tier == candidate) && pool.store[block].settled(static_cast<std::size_t>(candidate));
        };
        if (block != kNone && (serves(Tier::primary) || serves(Tier::host))) {
            const Tier found = serves(Tier::primary) ? Tier::primary : Tier::host;
            KVFIX_PAUSE("find.found");
            pool.pin(block, static_cast<std::size_t>(found));
            out[i] = PinnedBlock{hashes[i], id_of(pool, block), pool.store[block].slot[static_cast<std::size_t>(found)],
                                 found, pool.config.window_size};
        } else if (stop_on_miss) {
            break;
        }
    }
    return out;
}

// Which of the prompt's full blocks each hash is that of. Needs no lock.
std::vector<std::uint32_t> BlockManager::positions_of(std::span<const BlockHash> hashes, const Request& request) const {
    const auto own = block_hashes(request, BlockHasher(config_.seed, config_.hash_bits), config_.tokens_per_block);
    std::vector<std::uint32_t> positions;
    auto from = own.begin();
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        const auto at = std::find(from, own.end(), hashes[i]);
        if (at == own.end()) {
            throw std::invalid_argument(
                "request " + std::to_string(request.id) + ", hashes: number " + std::to_string(i) +
                " is that of none of its full blocks behind the one before (other tokens, salt, LoRA adapter or extra "
                "keys, or a manager with another seed?)");
        }
        positions.push_back(static_cast<std::uint32_t>(at - own.begin()));
        from = std::next(at);
    }
    return positions;
}

// The blocks of the prompt at these ascending positions, as far as the tree has its path; kNone behind.
std::vector<BlockIndex> BlockManager::find_on_path(const WindowPool& pool, const Request& request,
                                                   std::span<const std::uint32_t> positions) const {
    std::vector<BlockIndex> out(positions.size(), kNone);
    ParentRef parent = pool.tree.find_root(request.identity);
    std::uint32_t position = 0;
    for (std::size_t i = 0; i < positions.size() && parent != kNone; ++i) {
        for (; position <= positions[i] && parent != kNone; ++position) {
            const std::uint32_t begin = position * config_.tokens_per_block;
            const std::string extras = request.block_extras(begin, begin + config_.tokens_per_block);
            const BlockContent content{std::span(request.tokens).subspan(begin, config_.tokens_per_block), extras};
            parent = pool.tree.find_child(parent, pool.tree.child_key(pool.tree.key_of(parent), content), content);
        }
        out[i] = parent;
    }
    return out;
}

}  // namespace kvfix
