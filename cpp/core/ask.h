// The questions that a scheduler asks before it decides. They change nothing but the planner's own memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/admission_planner.h"
#include "core/state.h"

namespace kvfix::ask {

// The primary blocks, window by window, that this request alone would take from those available: to be admitted now, in
// chunks or at once, and then to grow by `tokens_new_max` positions. The request is admitted exactly if the first part
// is no more than is available.
std::vector<std::uint64_t> blocks_to_admit(const State& state, AdmissionPlanner& planner, const RequestPtr& request,
                                           std::uint32_t tokens_new_max, std::uint32_t chunk_tokens);
// The primary blocks that growth by these counts would take beyond those kept, in the window that needs most.
std::uint64_t blocks_to_grow(const State& state, std::span<const RequestId> ids, std::span<const std::uint32_t> counts);
// The primary blocks, window by window, that would be available without these sequences: free or cached, and kept for
// no sequence.
std::vector<std::uint64_t> free_blocks_without(const State& state, std::span<const RequestId> ids);

// The number of the sequence's leading blocks that have left the window.
std::uint32_t front_blocks_removed(const State& state, RequestId id, WindowSize window_size);
Priority priority_of(const State& state, BlockId id);

}  // namespace kvfix::ask
