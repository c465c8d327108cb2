// Finds blocks by the hashes under which others know them.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "core/pause_point.h"
#include "core/pin.h"

namespace kvfix::pin {
namespace {

void check_whole(const BlockManagerConfig& config, std::span<const BlockHash> hashes) {
    const auto half = std::ranges::find(hashes, 0U, &BlockHash::second);
    if (half != hashes.end() && config.hash_bits == kBlockHashBits) {
        throw std::invalid_argument(
            "hashes: number " + std::to_string(half - hashes.begin()) +
            " has no second half: a block hash has 128 bits, and the 64 that some formats of events carry do not name "
            "a block for certain");
    }
}

// In a window each of the prompt's blocks may be present, whatever became of those before it.
std::vector<BlockIndex> find_by_prefix(const Window& window, const Path& path) {
    const Request& request = *path.request;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    std::vector<BlockIndex> out;
    ReuseTree::Prefix prefix = window.tree.beginning(request.identity);
    for (std::uint32_t position = 0; out.size() < path.positions.size(); ++position) {
        const std::uint32_t begin = position * tokens_per_block;
        const std::string extras = request.block_extras(begin, begin + tokens_per_block);
        const BlockContent content{std::span(request.tokens).subspan(begin, tokens_per_block), extras};
        const ReuseTree::Prefix behind = window.tree.behind(prefix, content);
        if (path.positions[out.size()] == position) {
            const ParentRef parent = window.tree.find_prefix(prefix);
            out.push_back(parent == kNone ? BlockIndex{kNone} : window.tree.find_child(parent, behind.key, content));
        }
        prefix = behind;
    }
    return out;
}

// The prompt's blocks on the path, as far as the tree has it; kNone beyond.
std::vector<BlockIndex> find_on_path(const Window& window, const Path& path) {
    const Request& request = *path.request;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    std::vector<BlockIndex> out(path.positions.size(), kNone);
    if (window.tree.by_prefix()) {
        return find_by_prefix(window, path);
    }
    ParentRef parent = window.tree.find_root(request.identity);
    std::uint32_t position = 0;
    for (std::size_t i = 0; i < out.size() && parent != kNone; ++i) {
        for (; position <= path.positions[i] && parent != kNone; ++position) {
            const std::uint32_t begin = position * tokens_per_block;
            const std::string extras = request.block_extras(begin, begin + tokens_per_block);
            const BlockContent content{std::span(request.tokens).subspan(begin, tokens_per_block), extras};
            parent =
                window.tree.find_child(parent, window.tree.child_key(window.tree.key_of(parent), content), content);
        }
        out[i] = parent.block();
    }
    return out;
}

std::vector<BlockIndex> find_by_hash(ReuseTree& tree, std::span<const BlockHash> hashes) {
    tree.keep_hashes();
    std::vector<BlockIndex> out;
    std::ranges::transform(hashes, std::back_inserter(out),
                           [&](const BlockHash& hash) { return tree.find_unambiguous(hash); });
    return out;
}

}  // namespace

Path path_of(const BlockManagerConfig& config, std::span<const BlockHash> hashes, const RequestPtr& request) {
    const auto own = block_hashes(*request, BlockHasher(config.seed, config.hash_bits), config.tokens_per_block);
    Path path{.request = request, .positions = {}};
    auto from = own.begin();
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        const auto at = std::find(from, own.end(), hashes[i]);
        if (at == own.end()) {
            throw std::invalid_argument(
                "request " + std::to_string(request->id) + ", hashes: number " + std::to_string(i) +
                " is that of none of its full blocks behind the one before (other tokens, salt, LoRA adapter or extra "
                "keys, or a manager with another seed?)");
        }
        path.positions.push_back(static_cast<std::uint32_t>(at - own.begin()));
        from = std::next(at);
    }
    return path;
}

std::vector<BlockIndex> find(const State& state, Window& window, const HashLookup& lookup) {
    check_whole(state.config, lookup.hashes);
    return lookup.path ? find_on_path(window, *lookup.path) : find_by_hash(window.tree, lookup.hashes);
}

std::vector<std::optional<PinnedBlock>> by_hash(State& state, const HashLookup& lookup) {
    Window& window = window_of(state, lookup.window_size);
    const std::vector<BlockIndex> blocks = find(state, window, lookup);
    std::vector<std::optional<PinnedBlock>> out(lookup.hashes.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const BlockIndex block = blocks[i];
        const auto serves = [&](Tier candidate) {
            return (!lookup.tier || *lookup.tier == candidate) &&
                   window.blocks[block].settled(static_cast<std::size_t>(candidate));
        };
        if (block != kNone && (serves(Tier::primary) || serves(Tier::host))) {
            const Tier found = serves(Tier::primary) ? Tier::primary : Tier::host;
            const auto tier = static_cast<std::size_t>(found);
            KVFIX_PAUSE("find.found");
            add(state, window, block, tier);
            out[i] = PinnedBlock{lookup.hashes[i], id_of(window, block), window.blocks[block].slot[tier], found,
                                 window.config.window_size};
        } else if (lookup.stop_on_miss) {
            break;
        }
    }
    return out;
}

}  // namespace kvfix::pin
