// A caller's report about a sequence as a whole: its tokens so far, and the number of its positions that are in the
// cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/sequence.h"

namespace kvfix {

// Throws std::invalid_argument if the report contradicts what is known, or covers more than the sequence has.
void check_reported_tokens(const Sequence& sequence, std::optional<std::span<const TokenId>> tokens,
                           std::optional<std::uint32_t> computed);
void learn_reported_tokens(Sequence& sequence, std::optional<std::span<const TokenId>> tokens,
                           std::optional<std::uint32_t> computed);

}  // namespace kvfix
