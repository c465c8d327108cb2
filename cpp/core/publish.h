// Events about full blocks in the tree, recorded when the decision is made.
#pragma once

#include "core/state.h"

namespace kvfix {

// publish() where events are on.
void publish_wanted(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
                    const Request* request);

// `request` is the owner of the block; only stored events need it. Records nothing if events are off, or if the block
// is private or incomplete.
inline void publish(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
                    const Request* request = nullptr) {
    if (state.events.wanted()) [[unlikely]] {
        publish_wanted(state, window, kind, block, tier, request);
    }
}

}  // namespace kvfix
