// Copies to host on request, before eviction would make them.
#pragma once

#include <optional>
#include <vector>

#include "core/pin.h"
#include "core/state.h"

namespace kvfix::offload {

// Of each hash the block that is in host, or on its way there, from now on; nothing behind a miss where the look-up says so. Throws
// OutOfBlocks where the host tier has no room for all.
std::vector<std::optional<BlockId>> by_hash(State& state, const pin::HashLookup& lookup);

}  // namespace kvfix::offload
