// How a sequence's blocks become findable, and how it ends.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/block_manager.h"
#include "core/steps.h"

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
        store_blocks(sequence, window, std::min(sequence.computed, sequence.prompt_length()));
    }
    leave_windows(sequence);
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
    const auto full = static_cast<std::uint32_t>(std::min<std::size_t>(tokens / config_.tokens_per_block, shared));
    const std::uint32_t limit = std::min(full, first_unsure(sequence));
    constexpr std::uint32_t kAhead = 16;
    while (cursor.position < limit) {
        const std::uint32_t ready = write_content(sequence, window, std::min(limit, cursor.position + kAhead));
        do {  // a block that is not held has no content to write: it is looked up, alone
            if (!store_next(sequence, window)) {
                return;
            }
        } while (cursor.position < ready);
    }
}

// The first position whose bytes have not arrived, or may not have, in some window; nothing computed from there on is stored.
std::uint32_t BlockManager::first_unsure(Sequence& sequence) const {
    std::uint32_t first = sequence.doubtful_from;
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const WindowPool& pool = *pools_[window];
        HeldBlocks& held = sequence.windows[window];
        if (!pool.bytes_outstanding()) {
            continue;
        }
        const auto is_sure = [&](std::uint32_t position) {
            for (std::uint32_t beam = 0; beam < sequence.beam_width(); ++beam) {
                KVFIX_STEP();
                const Block& record = pool.store[held.at(beam, position)];
                if (record.undelivered || record.in_flight(kPrimary)) {
                    return false;
                }
            }
            return true;
        };
        held.sure = std::max(held.sure, held.left);
        while (held.sure < std::min<std::size_t>(held.size(), first) && is_sure(held.sure)) {
            ++held.sure;
        }
        if (held.sure < held.size()) {
            first = std::min(first, held.sure);
        }
    }
    return first;
}

// Writes content and keys of the private blocks from the cursor on, and calls up the index entries that they lead to. Stops at
// `end` or at the first block that is not held, and returns where.
std::uint32_t BlockManager::write_content(const Sequence& sequence, std::size_t window, std::uint32_t end) {
    WindowPool& pool = *pools_[window];
    const StoreCursor& cursor = sequence.cursors[window];
    std::uint64_t key =
        cursor.position == 0 ? pool.tree.root_key(sequence.request->identity) : pool.store[cursor.parent].key;
    for (std::uint32_t position = cursor.position; position < end; ++position) {
        const BlockIndex own = sequence.windows[window].shared[position];
        if (own == kNone) {
            return position;
        }
        Block& record = pool.store[own];
        if (!record.in_tree) {
            const std::uint32_t begin = position * config_.tokens_per_block;
            sequence.read_tokens(begin, pool.store.tokens(own));
            pool.store.set_extras(own, sequence.request->block_extras(begin, begin + config_.tokens_per_block));
            record.num_tokens = static_cast<std::uint16_t>(config_.tokens_per_block);
            record.key = pool.tree.child_key(key, pool.tree.content(own));
            pool.tree.prefetch(record.key);
        }
        key = record.key;
    }
    return end;
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
    if (own == kNone) {
        const BlockIndex equal = find_equal(sequence, window);
        return equal != kNone && advance(equal);
    }
    const Block& record = pool.store[own];
    if (record.in_tree) {
        return advance(own);
    }
    const ParentRef parent = cursor.position == 0 ? pool.tree.find_root(request.identity) : cursor.parent;
    const BlockIndex equal = parent == kNone ? kNone : pool.tree.find_child(parent, record.key, pool.tree.content(own));
    if (equal != kNone) {
        return advance(equal);
    }
    pool.enter_tree(own, parent == kNone ? pool.tree.open_root(request.identity) : parent, request.lora_id);
    return advance(own);
}

// The node with the content of the block at the cursor, which the sequence does not hold any more, or kNone.
BlockIndex BlockManager::find_equal(const Sequence& sequence, std::size_t window) {
    const WindowPool& pool = *pools_[window];
    const StoreCursor& cursor = sequence.cursors[window];
    const Request& request = *sequence.request;
    const ParentRef parent = cursor.position == 0 ? pool.tree.find_root(request.identity) : cursor.parent;
    if (parent == kNone) {
        return kNone;
    }
    const std::uint32_t begin = cursor.position * config_.tokens_per_block;
    content_.resize(config_.tokens_per_block);
    sequence.read_tokens(begin, content_);
    const std::string extras = request.block_extras(begin, begin + config_.tokens_per_block);
    return pool.tree.find_child(parent, pool.tree.child_key(pool.tree.key_of(parent), {content_, extras}),
                                {content_, extras});
}

// The incomplete block behind the cursor, so that a conversation that goes on finds its last tokens too.
void BlockManager::store_last_partial(Sequence& sequence, std::size_t window, std::uint32_t tokens) {
    const std::uint32_t rest = tokens % config_.tokens_per_block;
    const StoreCursor& cursor = sequence.cursors[window];
    const bool wanted = config_.block_reuse && config_.partial_reuse && sequence.beam_width() == 1 && rest != 0;
    if (!wanted || cursor.position != tokens / config_.tokens_per_block || first_unsure(sequence) <= cursor.position) {
        return;
    }
    WindowPool& pool = *pools_[window];
    const Request& request = *sequence.request;
    const BlockIndex own = sequence.windows[window].shared[cursor.position];
    if (own == kNone || pool.store[own].in_tree) {
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
    pool.store[own].num_tokens = static_cast<std::uint16_t>(rest);
    pool.store.set_extras(own, std::move(extras));
    pool.enter_tree(own, parent == kNone ? pool.tree.open_root(request.identity) : parent, request.lora_id);
}

std::vector<BlockId> BlockManager::remove_sequence(RequestId id, bool store, bool pin,
                                                   std::optional<std::span<const TokenId>> tokens,
                                                   std::optional<std::uint32_t> computed) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = sequences_.at(id);
    check_computed(sequence, computed.value_or(0));
    if (tokens) {
        check_whole_tokens(sequence, *tokens);
    }
    if (pin) {
        check_held_settled(sequence);
    }
    if (tokens && tokens->size() > sequence.known()) {
        sequence.grown_tokens.assign(tokens->begin() + sequence.prompt_length(), tokens->end());
    }
    sequence.computed = std::max(sequence.computed, computed.value_or(0));
    if (store) {
        for (std::size_t window = 0; window < pools_.size(); ++window) {
            store_blocks(sequence, window, sequence.storable());
            store_last_partial(sequence, window, sequence.storable());
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
    if (const auto negative = find_negative(tokens)) {
        refuse_negative(who, tokens, *negative);
    }
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
