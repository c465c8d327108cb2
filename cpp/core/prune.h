// A caller can make the tree forget the rest of a conversation. Nothing is written or copied.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix::prune {

// Blocks on the request's path that cover none of its first `tokens_kept` tokens leave the tree, the last first. It
// stops at a block that another one follows or that is in use. Returns how many left.
std::uint64_t conversation(State& state, const Request& request, std::uint32_t tokens_kept);

}  // namespace kvfix::prune
