#include "core/store.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/chunk.h"
#include "core/grow.h"
#include "core/hold.h"
#include "core/keep.h"
#include "core/past_window.h"
#include "core/pin.h"
#include "core/publish.h"
#include "core/reported_tokens.h"
#include "core/steps.h"

namespace kvfix::store {
namespace {

bool has_arrived(const Window& window, const HeldBlocks& held, std::uint32_t position) {
    const std::size_t beams = std::max<std::size_t>(held.tails.size(), 1);
    for (std::uint32_t beam = 0; beam < beams; ++beam) {
        KVFIX_STEP();
        const Block& record = window.blocks[held.at(beam, position)];
        if (record.undelivered || record.in_flight(kPrimary)) {
            return false;
        }
    }
    return true;
}

// Writes the content and keys of the private blocks from the cursor on, and prefetches the index entries that they lead
// to. Stops at `end` or at the first block that is not held, and returns where.
std::uint32_t write_content(Window& window, const Sequence& sequence, std::uint32_t end) {
    const StoreCursor& cursor = sequence.cursors[window.index];
    std::uint64_t key =
        cursor.position == 0 ? window.tree.root_key(sequence.request->identity) : window.blocks[cursor.parent].key;
    for (std::uint32_t position = cursor.position; position < end; ++position) {
        const BlockIndex own = sequence.windows[window.index].shared[position];
        if (own == kNone) {
            return position;
        }
        Block& record = window.blocks[own];
        if (!record.in_tree) {
            const std::uint32_t begin = position * window.blocks.tokens_per_block();
            sequence.read_tokens(begin, window.blocks.tokens(own));
            window.blocks.set_extras(own,
                                     sequence.request->block_extras(begin, begin + window.blocks.tokens_per_block()));
            record.num_tokens = static_cast<std::uint16_t>(window.blocks.tokens_per_block());
            record.key = window.tree.child_key(key, window.tree.content(own));
            window.tree.prefetch(record.key);
        }
        key = record.key;
    }
    return end;
}

// The parent of the block at the cursor. Returns kNone while its root is not open.
ParentRef parent_at(const Window& window, const StoreCursor& cursor, const Request& request) {
    if (window.tree.by_prefix()) {
        return window.tree.find_prefix(cursor.prefix);
    }
    return cursor.position == 0 ? window.tree.find_root(request.identity) : cursor.parent;
}

// Opens the root if there is no parent yet.
void enter_below(State& state, Window& window, Sequence& sequence, BlockIndex block, ParentRef parent) {
    const Request& request = *sequence.request;
    const StoreCursor& cursor = sequence.cursors[window.index];
    if (parent == kNone) {
        parent = cursor.position == 0 ? window.tree.open_root(request.identity)
                                      : window.tree.open_prefix(cursor.prefix, request.identity);
    }
    enter(state, window, block, parent, request);
}

// The block at the cursor has entered the tree.
void note_further(Window& window, const Sequence& sequence, BlockIndex block) {
    const std::uint32_t position = sequence.cursors[window.index].position;
    if (position < ReuseTree::kLead) {
        return;
    }
    const BlockIndex before = sequence.windows[window.index].shared[position - ReuseTree::kLead];
    if (before != kNone) {
        window.tree.note_further(before, block);
    }
}

// The tree's block with the content at the cursor, which the sequence no longer holds; kNone if there is none.
BlockIndex find_equal(const Window& window, const Sequence& sequence) {
    const StoreCursor& cursor = sequence.cursors[window.index];
    const Request& request = *sequence.request;
    const ParentRef parent = parent_at(window, cursor, request);
    if (parent == kNone) {
        return kNone;
    }
    const std::uint32_t begin = cursor.position * window.blocks.tokens_per_block();
    std::vector<TokenId> tokens(window.blocks.tokens_per_block());
    sequence.read_tokens(begin, tokens);
    const std::string extras = request.block_extras(begin, begin + window.blocks.tokens_per_block());
    return window.tree.find_child(parent, window.tree.child_key(window.tree.key_of(parent), {tokens, extras}),
                                  {tokens, extras});
}

// One step of the walk: passes the block at the cursor, finds that it exists already, or adds it. Returns false where
// the walk ends.
bool store_next(State& state, Window& window, Sequence& sequence) {
    StoreCursor& cursor = sequence.cursors[window.index];
    const Request& request = *sequence.request;
    const BlockIndex own = sequence.windows[window.index].shared[cursor.position];
    const auto advance = [&](BlockIndex node) {
        cursor = {cursor.position + 1, node, std::as_const(window.blocks)[node].generation, {}};
        return true;
    };
    if (own == kNone) {
        const BlockIndex equal = find_equal(window, sequence);
        return equal != kNone && advance(equal);
    }
    const Block& record = std::as_const(window.blocks)[own];
    if (record.in_tree) {
        return advance(own);
    }
    const ParentRef parent = parent_at(window, cursor, request);
    const BlockIndex equal =
        parent == kNone ? kNone : window.tree.find_child(parent, record.key, window.tree.content(own));
    if (equal != kNone) {
        return advance(equal);
    }
    enter_below(state, window, sequence, own, parent);
    note_further(window, sequence, own);
    return advance(own);
}

// Stores the incomplete block behind the cursor, so that a conversation that continues finds its last tokens too.
void last_partial(State& state, Window& window, Sequence& sequence, std::uint32_t tokens) {
    const std::uint32_t rest = tokens % window.blocks.tokens_per_block();
    const StoreCursor& cursor = sequence.cursors[window.index];
    const bool wanted = state.reuses() && state.config.partial_reuse && sequence.beam_width() == 1 && rest != 0;
    if (!wanted || cursor.position != tokens / window.blocks.tokens_per_block() ||
        first_unsure(state, sequence) <= cursor.position) {
        return;
    }
    const Request& request = *sequence.request;
    const BlockIndex own = sequence.windows[window.index].shared[cursor.position];
    if (own == kNone || window.blocks[own].in_tree) {
        return;
    }
    const std::uint32_t begin = cursor.position * window.blocks.tokens_per_block();
    const std::span<TokenId> content = window.blocks.tokens(own).first(rest);
    sequence.read_tokens(begin, content);
    std::string extras = request.block_extras(begin, begin + rest);
    const ParentRef parent = parent_at(window, cursor, request);
    if (parent != kNone && window.tree.best_prefix(parent, {content, extras}).tokens == rest) {
        return;
    }
    window.blocks[own].num_tokens = static_cast<std::uint16_t>(rest);
    window.blocks.set_extras(own, std::move(extras));
    if (window.tree.by_prefix()) {
        window.tree.set_above(own, cursor.prefix);
    }
    enter_below(state, window, sequence, own, parent);
}

// Lets go of what a suspended sequence keeps.
void keep_none(State& state, const Sequence& sequence) {
    for (Window& window : state.windows) {
        sequence.windows[window.index].for_each_from_last(
            [&](BlockIndex block) { keep::end(state, window, block, sequence.id()); });
    }
}

}  // namespace

std::uint32_t first_unsure(const State& state, Sequence& sequence) {
    std::uint32_t first = sequence.doubtful_from;
    for (const Window& window : state.windows) {
        HeldBlocks& held = sequence.windows[window.index];
        if (!window.bytes_outstanding()) {
            continue;
        }
        held.sure = std::max(held.sure, held.left);
        while (held.sure < std::min<std::size_t>(held.size(), first) && has_arrived(window, held, held.sure)) {
            ++held.sure;
        }
        if (held.sure < held.size()) {
            first = std::min(first, held.sure);
        }
    }
    return first;
}

void enter(State& state, Window& window, BlockIndex block, ParentRef parent, const Request& request) {
    if (window.gone) {
        Block& record = window.blocks[block];
        record.asked_again = false;
        if (record.num_tokens == state.tokens_per_block()) {
            record.asked_again = window.gone->contains(record.key);
            window.newcomers->note_missed(record.key);
        }
    }
    window.tree.add(block, parent);
    ++state.current.blocks_stored;
    // const, because access to a mutable record marks it as changed
    const Block& record = std::as_const(window.blocks)[block];
    const Tier tier = record.has(kPrimary) ? Tier::primary : Tier::host;
    publish(state, window, EventKind::stored, block, tier, &request);
}

void context(State& state, RequestId id, std::uint32_t tokens_computed) {
    Sequence& sequence = state.sequences.at(id);
    if (tokens_computed > sequence.prompt_length()) {
        throw std::invalid_argument(
            "request " + std::to_string(id) + ", tokens_computed: " + std::to_string(tokens_computed) +
            " is more than the prompt's " + std::to_string(sequence.prompt_length()) + " tokens");
    }
    grow::check_computed(sequence, tokens_computed);
    sequence.computed = std::max(sequence.computed, tokens_computed);
    for (Window& window : state.windows) {
        if (!sequence.windows[window.index].rolls) {
            full_blocks(state, window, sequence, std::min(sequence.computed, sequence.prompt_length()));
        }
    }
    past_window::let_go(state, sequence);
    for (Window& window : state.windows) {
        chunk::settle(window, sequence);
    }
}

void full_blocks(State& state, Window& window, Sequence& sequence, std::uint32_t tokens) {
    if (!state.reuses()) {
        return;
    }
    if (window.tree.by_prefix()) {
        blocks_by_prefix(state, window, sequence, tokens);
        return;
    }
    StoreCursor& cursor = sequence.cursors[window.index];
    if (cursor.position != 0 && window.blocks[cursor.parent].generation != cursor.generation) {
        cursor = {};  // a block on the way has left the tree since
    }
    const std::size_t shared = sequence.windows[window.index].shared.size();
    const auto full =
        static_cast<std::uint32_t>(std::min<std::size_t>(tokens / window.blocks.tokens_per_block(), shared));
    const std::uint32_t limit = std::min(full, first_unsure(state, sequence));
    constexpr std::uint32_t kAhead = 16;
    while (cursor.position < limit) {
        const std::uint32_t ready = write_content(window, sequence, std::min(limit, cursor.position + kAhead));
        do {  // a block that is not held has no content to write; it is only looked up
            if (!store_next(state, window, sequence)) {
                return;
            }
        } while (cursor.position < ready);
    }
}

std::vector<BlockId> remove(State& state, RequestId id, bool store, bool pin,
                            std::optional<std::span<const TokenId>> tokens, std::optional<std::uint32_t> computed) {
    Sequence& sequence = state.sequences.at_any(id);
    check_reported_tokens(sequence, tokens, computed);
    if (pin) {
        sequence.check_not_suspended();
        pin::check_settled(state, sequence);
    }
    learn_reported_tokens(sequence, tokens, computed);
    if (store) {
        for (Window& window : state.windows) {
            full_blocks(state, window, sequence, sequence.storable());
            last_partial(state, window, sequence, sequence.storable());
        }
    }
    std::vector<BlockId> pinned = pin ? pin::held(state, sequence) : std::vector<BlockId>{};
    if (sequence.suspended) {
        keep_none(state, sequence);
        --state.sequences_suspended;
    } else {
        hold::let_go_all(state, sequence);
    }
    state.sequences.remove(id);
    return pinned;
}

}  // namespace kvfix::store
