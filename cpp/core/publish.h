// Events about full blocks in the tree, recorded when the decision is made.
#pragma once

#include "core/state.h"

namespace kvfix {

// `request`: of stored events, whose block it is. Records nothing if events are off, or if the block is private or incomplete.
void publish(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
             const Request* request = nullptr);

}  // namespace kvfix
