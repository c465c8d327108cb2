// Copies to host on request, before eviction would make them.
#pragma once

#include <optional>
#include <vector>

#include "core/pin.h"
#include "core/state.h"

namespace kvfix::offload {

// Returns for each hash the block that is in host from now on, or on its way there. If the look-up says so, it stops at
// the first miss. Throws OutOfBlocks if the host tier has no room for all of them.
std::vector<std::optional<BlockId>> by_hash(State& state, const pin::HashLookup& lookup);

}  // namespace kvfix::offload
