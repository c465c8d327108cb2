// What must hold between any two calls. Each throws InvariantViolation where it does not.
#pragma once

#include <cstdint>
#include <span>

#include "core/state.h"

namespace kvfix {

void check_invariants(const State& state);
// One window alone. `owners[block]`: how many sequences say that they hold it.
void check_window_invariants(const Window& window, std::span<const std::uint32_t> owners);

}  // namespace kvfix
