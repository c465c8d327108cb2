// Decode growth and rewind, and the blocks that leave a window on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/state.h"

namespace kvfix::grow {

struct Step {
    Sequence* sequence;
    std::uint32_t count;
    std::uint32_t computed;
    std::uint32_t blocks;  // that each beam takes, where the prompt is reserved to its end
};

// Blocks that so many more positions take in each window.
std::uint64_t blocks_taken(const Sequence& sequence, std::uint32_t count, std::uint32_t tokens_per_block);

// counts[i] more positions for ids[i]; tokens, if any, are the values of all of them behind the prompts, in order. computed[i], if any: leading
// positions of ids[i], of those that it had before, whose values are in the cache by now. `steps` is memory of the caller's.
void add_tokens(State& state, std::vector<Step>& steps, std::span<const RequestId> ids,
                std::span<const std::uint32_t> counts, std::optional<std::span<const TokenId>> tokens,
                std::optional<std::span<const std::uint32_t>> computed);
void rewind(State& state, RequestId id, std::uint32_t count);

// Throws std::invalid_argument where the sequence has fewer positions.
void check_computed(const Sequence& sequence, std::uint32_t computed);
// What no position to come will read is stored if it can be, and let go.
void leave_windows(State& state, Sequence& sequence);

}  // namespace kvfix::grow
