// Preemption: a live sequence gives up its primary blocks for copies in host, and returns by its id. Both calls are all
// or nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "core/state.h"

namespace kvfix::preempt {

// Returns how many copies to host are queued. Throws BlockInFlight if a block of the sequence has not arrived,
// OutOfBlocks if the host tier has no room, and std::invalid_argument if bytes are missing, the prompt is not reserved
// to its end, or the sequence is already suspended.
std::uint64_t suspend(State& state, RequestId id);
// Returns how many copies to primary are queued. Throws BlockInFlight if a copy is still on its way, OutOfBlocks, and
// std::invalid_argument if a copy was lost or the sequence is not suspended.
std::uint64_t resume(State& state, RequestId id);
// The primary blocks, window by window, that resuming takes from those free or cached.
std::vector<std::uint64_t> blocks_to_resume(const State& state, RequestId id);

}  // namespace kvfix::preempt
