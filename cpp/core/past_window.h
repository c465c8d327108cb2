// Blocks that leave a window, because no position to come looks back to them.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix::past_window {

// Leading blocks that no position from `computed` on looks back to.
std::uint32_t blocks_behind(const Window& window, std::uint32_t computed);
// Stores the blocks that no position to come will read, if they can be stored, and lets them go.
void let_go(State& state, Sequence& sequence);

}  // namespace kvfix::past_window
