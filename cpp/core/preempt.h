// Preemption: a live sequence gives its primary blocks up for copies in host, and comes back by its id. Both are all or nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "core/state.h"

namespace kvfix::preempt {

// How many copies to host are queued. Throws BlockInFlight where a block of the sequence has not arrived, OutOfBlocks where the host
// tier has no room, and std::invalid_argument where bytes are missing, the prompt is not reserved to its end, or the sequence is
// suspended already.
std::uint64_t suspend(State& state, RequestId id);
// How many copies to primary are queued. Throws BlockInFlight where a copy is still on its way, OutOfBlocks, and
// std::invalid_argument where a copy was lost or the sequence is not suspended.
std::uint64_t resume(State& state, RequestId id);
// Window by window, the primary blocks that resuming takes of those free or cached.
std::vector<std::uint64_t> blocks_to_resume(const State& state, RequestId id);

}  // namespace kvfix::preempt
