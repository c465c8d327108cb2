// The blocks that suspended sequences keep. One lock keeps each of their blocks: in host if a copy is there or on its
// way, else in primary.
#pragma once

#include <cstddef>

#include "core/state.h"
#include "core/steps.h"

namespace kvfix::keep {

// Adds a suspended sequence. The block has a slot in that tier; if it was kept in the other tier, it is kept in this
// one now.
void begin(State& state, Window& window, BlockIndex block, std::size_t tier, RequestId keeper);
// Removes a suspended sequence. When the last one goes, the block goes where it belongs.
void end(State& state, Window& window, BlockIndex block, RequestId keeper);
// The copy in host will not arrive, so its keepers keep the primary slot instead.
void fall_back(State& state, Window& window, BlockIndex block);

inline bool has(const Window& window, BlockIndex block) { return window.kept.contains(block); }

template <class Visit>
void for_each_keeper(const Window& window, BlockIndex block, Visit&& visit) {
    for (auto at = window.keepers.lower_bound({block, 0}); at != window.keepers.end() && at->first == block; ++at) {
        KVFIX_STEP();
        visit(at->second);
    }
}

}  // namespace kvfix::keep
