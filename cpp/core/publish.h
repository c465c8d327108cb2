// Events about full blocks in the tree, recorded when the decision is made.
#pragma once

#include "core/state.h"

namespace kvfix {

// `request` is the owner of the block; only stored events need it. Records nothing if events are off, or if the block
// is private or incomplete.
void publish(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
             const Request* request = nullptr);

}  // namespace kvfix
