// What a scheduler wants to know before it decides. Nothing here changes anything, the planner's own memory aside.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/admission_planner.h"
#include "core/state.h"

namespace kvfix::ask {

// Primary blocks, window by window, that the request alone would take of those there: to be admitted now, in chunks or at once, and to
// grow by `tokens_new_max` positions afterwards. It is admitted exactly where the first part is no more than there are.
std::vector<std::uint64_t> blocks_to_admit(const State& state, AdmissionPlanner& planner, const RequestPtr& request,
                                           std::uint32_t tokens_new_max, std::uint32_t chunk_tokens);
// Primary blocks that growth by these counts would take beyond those kept, in the window where it is most.
std::uint64_t blocks_to_grow(const State& state, std::span<const RequestId> ids, std::span<const std::uint32_t> counts);
// Primary blocks, window by window, that would be there without these sequences: free or cached, and kept for no sequence.
std::vector<std::uint64_t> free_blocks_without(const State& state, std::span<const RequestId> ids);

// Leading blocks of the sequence that have left the window.
std::uint32_t front_blocks_removed(const State& state, RequestId id, WindowSize window_size);
Priority priority_of(const State& state, BlockId id);

}  // namespace kvfix::ask
