// Checks of what must hold between any two calls. Each throws InvariantViolation if it does not.
#pragma once

#include <cstdint>
#include <span>

#include "core/state.h"

namespace kvfix {

void check_invariants(const State& state);
// Checks one window alone. `owners[block]` says how many sequences claim to hold the block.
void check_window_invariants(const Window& window, std::span<const std::uint32_t> owners);

}  // namespace kvfix
