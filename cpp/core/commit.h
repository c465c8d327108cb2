// A live sequence shows its blocks to others, and their hashes to the caller, while it goes on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/state.h"

namespace kvfix::commit {

// The full blocks that are computed and known enter the tree, those behind the prompt too. From then on no rewind takes
// them back. With `pin`, pins the sequence's blocks and returns their ids.
std::vector<BlockId> blocks(State& state, RequestId id, bool pin, std::optional<std::span<const TokenId>> tokens,
                            std::optional<std::uint32_t> computed);
// The hashes of its full blocks whose tokens are known, from the first block on.
std::vector<BlockHash> hashes(State& state, RequestId id);

}  // namespace kvfix::commit
