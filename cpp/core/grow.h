// Decode growth and rewind, and the blocks that leave a window on the way.
#pragma once

#include <algorithm>
#include <cstdint>
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
    std::uint32_t blocks;  // that each beam takes, where the prompt is reserved to its end
};

// Blocks that so many more positions take in each window.
std::uint64_t blocks_taken(const Sequence& sequence, std::uint32_t count, std::uint32_t tokens_per_block);

// `steps` is memory of the caller's.
void add_tokens(State& state, std::vector<Step>& steps, const Growth& growth);
// The same where it does little under the lock, whatever the manager holds: a few sequences, positions and blocks that are at hand, in full
// attention without a host tier. Else nothing is done, and the answer is false. Where `are_few` says no, this need not be asked.
bool are_few(const BlockManagerConfig& config, const Growth& growth);
bool add_few_tokens(State& state, std::vector<Step>& steps, const Growth& growth);
void rewind(State& state, RequestId id, std::uint32_t count);

// Throws std::invalid_argument where the sequence has fewer positions.
void check_computed(const Sequence& sequence, std::uint32_t computed);
// What no position to come will read is stored if it can be, and let go.
void leave_windows(State& state, Sequence& sequence);

}  // namespace kvfix::grow
