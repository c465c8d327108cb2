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

// The same, each in its own tier.
void end(State& state, std::span<const HeldPin> pins);

// Where the blocks of a look-up by hash stand in the prompt of the request that it carries.
struct Path {
    RequestPtr request;
    std::vector<std::uint32_t> positions;  // ascending, one for each hash
};
// Throws std::invalid_argument where hashes are not of the request's full blocks, in their order. Reads no state.
Path path_of(const BlockManagerConfig& config, std::span<const BlockHash> hashes, const RequestPtr& request);

struct HashLookup {
    std::span<const BlockHash> hashes;
    std::optional<Tier> tier;
    bool stop_on_miss;
    WindowSize window_size;
    std::optional<Path> path;  // with one, blocks are found by their content
};
// The blocks of the tree, wherever they are; kNone for a hash that has none, or more than one.
std::vector<BlockIndex> find(const State& state, Window& window, const HashLookup& lookup);
std::vector<std::optional<PinnedBlock>> by_hash(State& state, const HashLookup& lookup);

}  // namespace kvfix::pin
