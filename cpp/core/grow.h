// Decode growth and rewind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/state.h"

namespace kvfix::grow {

// counts[i] more positions for ids[i]; tokens, if any, are the values of all of them behind the prompts, in order. computed[i], if any: leading
// positions of ids[i], of those that it had before, whose values are in the cache by now.
struct Growth {
    std::span<const RequestId> ids;
    std::span<const std::uint32_t> counts;
    std::optional<std::span<const TokenId>> tokens;
    std::optional<std::span<const std::uint32_t>> computed;
};

// A call of at most so many sequences, positions and blocks is a short one.
inline constexpr std::uint64_t kFew = 256;

struct Step {
    Sequence* sequence;
    std::uint32_t count;
    std::uint32_t computed;
    std::uint32_t blocks;  // blocks that each beam takes, if the prompt is reserved to its end
};

// Blocks that so many more positions take in each window.
std::uint64_t blocks_taken(const Sequence& sequence, std::uint32_t count, std::uint32_t tokens_per_block);

// Growth that is possible as long as the state stays as it is.
struct Plan {
    std::span<const Step> steps;
    std::optional<std::span<const TokenId>> tokens;
    std::uint64_t blocks;  // blocks that all steps take in a window without chunks
    bool chunked;          // whether a window has prompts that are reserved in chunks
};

// Sequences that generate together, one position a step each. They are looked up again only after a sequence has ended.
struct DecodeBatch {
    std::vector<RequestId> ids;
    std::vector<Step> steps;                                              // of these ids
    std::uint64_t looked_up = std::numeric_limits<std::uint64_t>::max();  // SequenceTable::ended() at that time
};

// Both throw where the growth is not possible, and change nothing. `steps` is memory of the caller's. `computed`: all positions that the
// batch had before have their values in the cache.
Plan plan(State& state, std::vector<Step>& steps, const Growth& growth);
Plan plan(State& state, DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens, bool computed);
// Throws std::invalid_argument for an id that comes twice, and what SequenceTable::at() throws.
void look_up(State& state, DecodeBatch& batch);
void carry_out(State& state, const Plan& plan);

// Whether a call does little under the lock, whatever the manager holds: a few sequences, positions and blocks that are
// at hand, in full attention without a host tier. If `are_few` says no, no plan is short.
bool are_few(const BlockManagerConfig& config, const Growth& growth);
bool are_few(const BlockManagerConfig& config, const DecodeBatch& batch);
bool is_short(const State& state, const Plan& plan);

void rewind(State& state, RequestId id, std::uint32_t count);

// Throws std::invalid_argument where the sequence has fewer positions.
void check_computed(const Sequence& sequence, std::uint32_t computed);

}  // namespace kvfix::grow
