// A digest of the state in 64 bits.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix {

// Covers everything that a later call can show. Each call costs what has changed since the last one; the first looks at
// every block.
std::uint64_t digest_of(State& state);
// Covers one record and what it holds.
std::uint64_t digest_of_block(const Window& window, BlockIndex block);

}  // namespace kvfix
