// What suspended sequences keep: each of their blocks by one lock, in host where a copy is or is on its way, else in primary.
#pragma once

#include <cstddef>

#include "core/state.h"
#include "core/steps.h"

namespace kvfix::keep {

// One suspended sequence more. The block has a slot in that tier; a block that is kept elsewhere is kept there from now on.
void begin(State& state, Window& window, BlockIndex block, std::size_t tier, RequestId keeper);
// One less: with the last one the block goes where it belongs.
void end(State& state, Window& window, BlockIndex block, RequestId keeper);
// The copy in host will not come: its keepers there keep the primary slot instead.
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
