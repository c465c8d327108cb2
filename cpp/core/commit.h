// A live sequence shows the hashes of its blocks to the caller, while it goes on.
#pragma once

#include <vector>

#include "core/state.h"

namespace kvfix::commit {

// The hashes of its full blocks whose tokens are known, from the first block on.
std::vector<BlockHash> hashes(State& state, RequestId id);

}  // namespace kvfix::commit
