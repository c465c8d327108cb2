// What a live sequence shows of itself while it goes on: its blocks to others, and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/state.h"

namespace kvfix::commit {

// The full blocks that are computed and known enter the tree, those behind the prompt too: no rewind takes them back from then on.
// The ids of what it pins, with `pin`.
std::vector<BlockId> blocks(State& state, RequestId id, bool pin, std::optional<std::span<const TokenId>> tokens,
                            std::optional<std::uint32_t> computed);
// Of its full blocks whose tokens are known, from the first.
std::vector<BlockHash> hashes(State& state, RequestId id);

}  // namespace kvfix::commit
