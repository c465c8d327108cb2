#include "fuzz/world/mirror.h"

#include <algorithm>

namespace kvfix::world {

Mirror::Mirror(const BlockManagerConfig& config)
    : complete_(config.hash_bits == kBlockHashBits && config.events_max >= 1U << 16 && config.block_reuse),
      tokens_per_block_(config.tokens_per_block),
      trees_(config.windows.size()) {
    for (const WindowConfig& window : config.windows) {
        sizes_.push_back(window.window_size);
    }
}

void Mirror::read(const std::vector<BlockEvent>& events, std::uint64_t dropped) {
    if (!complete_) {
        return;
    }
    promise(dropped == 0, "events were dropped, although there was room");
    for (const BlockEvent& event : events) {
        promise(event.event_id == next_event_++, "an event is missing");
        apply(event);
    }
    if (!events.empty()) {
        expect_rooted();
    }
}

void Mirror::apply(const BlockEvent& event) {
    const auto window = std::ranges::find(sizes_, event.window_size);
    promise(window != sizes_.end(), "an event of a window that is not there");
    Tree& tree = trees_[static_cast<std::size_t>(window - sizes_.begin())];
    const auto found = tree.find(event.block_hash);
    if (event.kind == EventKind::stored) {
        promise(found == tree.end(), "a block is stored twice");
        promise(event.tokens.size() == tokens_per_block_, "a stored block is not full");
        promise(!event.parent_hash || event.window_size || tree.contains(*event.parent_hash),
                "a block is stored below one that is not there");
        tree[event.block_hash] = {event.parent_hash, event.tokens, event.tier};
        return;
    }
    promise(found != tree.end(), "an event about a block that is not there");
    if (event.kind == EventKind::removed) {
        promise(event.tier == found->second.tier, "a block goes from another tier than it was in");
        tree.erase(found);
    } else {
        found->second.tier = event.tier;
    }
}

void Mirror::expect_rooted() const {
    for (std::size_t window = 0; window < trees_.size(); ++window) {
        const Tree& tree = trees_[window];
        for (const auto& [hash, node] : tree) {
            promise(sizes_[window] || !node.parent || tree.contains(*node.parent),
                    "a block went, and what was below it stayed");
        }
    }
}

bool Mirror::allows(std::size_t window, const std::vector<BlockHash>& hashes, std::size_t blocks) const {
    const std::size_t tokens = blocks * tokens_per_block_;
    const std::size_t reach = sizes_[window].value_or(~0U);
    for (std::size_t block = tokens > reach ? (tokens - reach) / tokens_per_block_ : 0; block < blocks; ++block) {
        if (!trees_[window].contains(hashes[block])) {
            return false;
        }
    }
    return true;
}

std::uint32_t Mirror::longest_beginning(std::size_t window, std::optional<BlockHash> parent,
                                        std::span<const TokenId> tokens) const {
    std::size_t longest = 0;
    for (const auto& [hash, node] : trees_[window]) {
        if (node.parent == parent) {
            const auto differ = std::ranges::mismatch(node.tokens, tokens);
            longest = std::max<std::size_t>(longest, static_cast<std::size_t>(differ.in1 - node.tokens.begin()));
        }
    }
    return static_cast<std::uint32_t>(longest);
}

std::optional<Tier> Mirror::tier_of(std::size_t window, const BlockHash& hash) const {
    const auto found = trees_[window].find(hash);
    return found == trees_[window].end() ? std::nullopt : std::optional(found->second.tier);
}

std::size_t Mirror::size() const {
    std::size_t size = 0;
    for (const Tree& tree : trees_) {
        size += tree.size();
    }
    return size;
}

}  // namespace kvfix::world
