// Makes a sequence's blocks findable, and ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/state.h"

namespace kvfix::store {

// The prompt's first `tokens_computed` tokens are in the cache. Their full blocks enter the tree, except in a window
// where HeldBlocks::rolls is set. Then blocks leave their windows as in growth.
void context(State& state, RequestId id, std::uint32_t tokens_computed);
// The first position whose bytes have not arrived in some window, or may not have. Nothing computed from there on is
// stored.
std::uint32_t first_unsure(const State& state, Sequence& sequence);
// The full blocks of the first `tokens` tokens enter the tree of one window, as far as the walk gets.
void full_blocks(State& state, Window& window, Sequence& sequence, std::uint32_t tokens);
// The same in a window, where a block's parent is the prefix that it follows. Blocks that have left the window are
// passed. Each block that is held may enter, whatever became of those before it.
void blocks_by_prefix(State& state, Window& window, Sequence& sequence, std::uint32_t tokens);
// The private block's content has been written. The block becomes findable below `parent`.
void enter(State& state, Window& window, BlockIndex block, ParentRef parent, const Request& request);
// Ends a sequence. With `pin`, pins its blocks and returns their ids.
std::vector<BlockId> remove(State& state, RequestId id, bool store, bool pin,
                            std::optional<std::span<const TokenId>> tokens, std::optional<std::uint32_t> computed);

}  // namespace kvfix::store
