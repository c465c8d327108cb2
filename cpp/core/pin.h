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

// Throws BlockInFlight where a block of the sequence has not arrived.
void check_settled(const State& state, const Sequence& sequence);
// Each block that the sequence holds, in primary; all are settled there.
std::vector<BlockId> held(State& state, const Sequence& sequence);

std::vector<BlockId> of_request(State& state, RequestId id);
std::vector<PinnedSlot> by_id(State& state, std::span<const BlockId> ids);
void end_by_id(State& state, std::span<const BlockId> ids, std::optional<Tier> tier);
std::vector<std::optional<PinnedBlock>> by_hash(State& state, std::span<const std::uint64_t> hashes,
                                                std::optional<Tier> tier, bool stop_on_miss, WindowSize window_size);

}  // namespace kvfix::pin
