// How a sequence's blocks become findable, and how it ends.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/block_manager.h"

namespace kvfix {

void BlockManager::store_context_blocks(RequestId id, std::uint32_t tokens_computed) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = sequences_.at(id);
    if (tokens_computed > sequence.prompt_length()) {
        throw std::invalid_argument(
            "request " + std::to_string(id) + ", tokens_computed: " + std::to_string(tokens_computed) +
            " is more than the prompt's " + std::to_string(sequence.prompt_length()) + " tokens");
    }
    sequence.computed = std::max(sequence.computed, tokens_computed);
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        store_blocks(sequence, window, sequence.computed);
    }
    leave_windows(sequence, sequence.computed);
}

// The full blocks of the first `tokens` tokens enter the tree, as far as the walk gets.
void BlockManager::store_blocks(Sequence& sequence, std::size_t window, std::uint32_t tokens) {
    if (!config_.block_reuse) {
        return;
    }
    StoreCursor& cursor = sequence.cursors[window];
    if (cursor.position != 0 && pools_[window]->store[cursor.parent].generation != cursor.generation) {
        cursor = {};  // something on the way has left the tree since
    }
    const std::size_t shared = sequence.windows[window].shared.size();
    const auto limit = static_cast<std::uint32_t>(std::min<std::size_t>(tokens / config_.tokens_per_block, shared));
    while (cursor.position < limit && store_next(sequence, window)) {
    }
}

// One step of the walk: the block at the cursor is passed, found to exist already, or added. False where the walk ends.
bool BlockManager::store_next(Sequence& sequence, std::size_t window) {
    WindowPool& pool = *pools_[window];
    StoreCursor& cursor = sequence.cursors[window];
    const Request& request = *sequence.request;
    const BlockIndex own = sequence.windows[window].shared[cursor.position];
    const auto advance = [&](BlockIndex node) {
        cursor = {cursor.position + 1, node, pool.store[node].generation};
        return true;
    };
    if (own != kNone && pool.store[own].undelivered) {
        return false;
    }
    if (own != kNone && pool.store[own].in_tree) {
        return advance(own);
    }
    const std::uint32_t begin = cursor.position * config_.tokens_per_block;
    content_.resize(config_.tokens_per_block);
    const std::span<TokenId> tokens = own != kNone ? pool.store.tokens(own) : std::span(content_);
    sequence.read_tokens(begin, tokens);
    std::string extras = request.block_extras(begin, begin + config_.tokens_per_block);

    const ParentRef parent = cursor.position == 0 ? pool.tree.find_root(request.identity) : cursor.parent;
    const std::uint64_t parent_hash = cursor.position == 0 ? request.root_hash : pool.store[cursor.parent].hash;
    const std::uint64_t hash = pool.tree.child_hash(parent_hash, {tokens, extras});
    const BlockIndex existing = parent == kNone ? kNone : pool.tree.find_child(parent, hash, {tokens, extras});
    if (existing != kNone) {
        return advance(existing);
    }
    if (own == kNone) {
        return false;
    }
    pool.store[own].hash = hash;
    pool.store[own].num_tokens = config_.tokens_per_block;
    pool.store.set_extras(own, std::move(extras));
    pool.enter_tree(own, parent == kNone ? pool.tree.open_root(request.identity, request.root_hash) : parent,
                    request.lora_id);
    return advance(own);
}

// The incomplete block behind the cursor, so that a conversation that goes on finds its last tokens too.
void BlockManager::store_last_partial(Sequence& sequence, std::size_t window, std::uint32_t tokens) {
    const std::uint32_t rest = tokens % config_.tokens_per_block;
    const StoreCursor& cursor = sequence.cursors[window];
    const bool wanted = config_.block_reuse && config_.partial_reuse && sequence.beam_width() == 1 && rest != 0;
    if (!wanted || cursor.position != tokens / config_.tokens_per_block) {
        return;
    }
    WindowPool& pool = *pools_[window];
    const Request& request = *sequence.request;
    const BlockIndex own = sequence.windows[window].shared[cursor.position];
    if (own == kNone || pool.store[own].in_tree || pool.store[own].undelivered) {
        return;
    }
    const std::uint32_t begin = cursor.position * config_.tokens_per_block;
    const std::span<TokenId> content = pool.store.tokens(own).first(rest);
    sequence.read_tokens(begin, content);
    std::string extras = request.block_extras(begin, begin + rest);
    const ParentRef parent = cursor.position == 0 ? pool.tree.find_root(request.identity) : cursor.parent;
    if (parent != kNone && pool.tree.best_prefix(parent, {content, extras}).tokens == rest) {
        return;
    }
    pool.store[own].num_tokens = rest;
    pool.store.set_extras(own, std::move(extras));
    pool.enter_tree(own, parent == kNone ? pool.tree.open_root(request.identity, request.root_hash) : parent,
                    request.lora_id);
}

std::vector<BlockId> BlockManager::remove_sequence(RequestId id, bool store, bool pin,
                                                   std::optional<std::span<const TokenId>> tokens) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = sequences_.at(id);
    if (tokens) {
        check_whole_tokens(sequence, *tokens);
    }
    if (pin) {
        check_held_settled(sequence);
    }
    if (tokens && tokens->size() > sequence.known()) {
        sequence.grown_tokens.assign(tokens->begin() + sequence.prompt_length(), tokens->end());
    }
    if (store) {
        const std::uint32_t storable = sequence.grown ? sequence.known() : sequence.computed;
        for (std::size_t window = 0; window < pools_.size(); ++window) {
            store_blocks(sequence, window, storable);
            store_last_partial(sequence, window, storable);
        }
    }
    std::vector<BlockId> pinned = pin ? pin_held(sequence) : std::vector<BlockId>{};
    let_go_all(sequence);
    sequences_.remove(id);
    return pinned;
}

void BlockManager::check_whole_tokens(const Sequence& sequence, std::span<const TokenId> tokens) const {
    const std::string who = "request " + std::to_string(sequence.id()) + ", tokens";
    if (tokens.size() > sequence.length) {
        throw std::invalid_argument(who + ": " + std::to_string(tokens.size()) + " tokens for a sequence of " +
                                    std::to_string(sequence.length) + "; grow it first");
    }
    if (tokens.size() < sequence.known()) {
        throw std::invalid_argument(who + ": " + std::to_string(tokens.size()) + " tokens, but " +
                                    std::to_string(sequence.known()) +
                                    " are known already; give the whole sequence, prompt included");
    }
    check_tokens(who, tokens);
    std::vector<TokenId> expected(sequence.known());
    sequence.read_tokens(0, expected);
    const auto [at, given] = std::ranges::mismatch(expected, tokens.first(expected.size()));
    if (at != expected.end()) {
        throw std::invalid_argument(who + ": token " + std::to_string(at - expected.begin()) + " is " +
                                    std::to_string(*given) + ", but the sequence has " + std::to_string(*at) +
                                    " there (another request's tokens?)");
    }
    if (tokens.size() > sequence.known() && sequence.beam_width() > 1) {
        throw std::invalid_argument(who + ": with beam_width " + std::to_string(sequence.beam_width()) +
                                    " each beam has tokens of its own after the prompt");
    }
}

// Last block first, so that the end of a prefix is evicted before its beginning.
void BlockManager::let_go_all(Sequence& sequence) {
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const HeldBlocks& held = sequence.windows[window];
        for (const auto& tail : held.tails) {
            for (const BlockIndex block : tail) {
                if (block != kNone) {
                    pools_[window]->let_go(block);
                }
            }
        }
        for (std::size_t position = held.shared.size(); position-- > 0 && held.shared[position] != kNone;) {
            pools_[window]->let_go(held.shared[position]);
        }
    }
}

}  // namespace kvfix
