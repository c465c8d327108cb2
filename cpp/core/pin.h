// Pins: a pinned block keeps its slot and its bytes in the tier it was pinned in. Each call is all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/results.h"
#include "core/state.h"

namespace kvfix::pin {

void add(State& state, Window& window, BlockIndex block, std::size_t tier);
void remove(State& state, Window& window, BlockIndex block, std::size_t tier);

// Throws BlockInFlight if a block of the sequence has not arrived.
void check_settled(const State& state, const Sequence& sequence);
// Pins each block that the sequence holds, in primary. All of them are settled there.
std::vector<BlockId> held(State& state, const Sequence& sequence);

std::vector<PinnedSlot> by_id(State& state, std::span<const BlockId> ids);
void end_by_id(State& state, std::span<const BlockId> ids, std::optional<Tier> tier);

}  // namespace kvfix::pin
