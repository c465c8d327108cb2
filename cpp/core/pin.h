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

std::vector<BlockId> of_request(State& state, RequestId id);
std::vector<PinnedSlot> by_id(State& state, std::span<const BlockId> ids);
void end_by_id(State& state, std::span<const BlockId> ids, std::optional<Tier> tier);

// The positions, in a request's prompt, of the blocks that a look-up by hash names.
struct Path {
    RequestPtr request;
    std::vector<std::uint32_t> positions;  // ascending, one for each hash
};
// Throws std::invalid_argument unless the hashes are those of the request's full blocks, in order. Reads no state.
Path path_of(const BlockManagerConfig& config, std::span<const BlockHash> hashes, const RequestPtr& request);

struct HashLookup {
    std::span<const BlockHash> hashes;
    std::optional<Tier> tier;
    bool stop_on_miss;
    WindowSize window_size;
    std::optional<Path> path;  // if set, blocks are found by their content
};
// Finds the blocks of the tree, in whatever tier. Returns kNone for a hash that no block has, or several.
std::vector<BlockIndex> find(const State& state, Window& window, const HashLookup& lookup);
std::vector<std::optional<PinnedBlock>> by_hash(State& state, const HashLookup& lookup);

}  // namespace kvfix::pin
