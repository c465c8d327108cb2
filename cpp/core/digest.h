// The state in 64 bits.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix {

// Everything that a later call can show. Costs what has changed since the last call; the first looks at every block.
std::uint64_t digest_of(State& state);
// Of one record and what it holds.
std::uint64_t digest_of_block(const Window& window, BlockIndex block);

}  // namespace kvfix
