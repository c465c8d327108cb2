// A caller can make the tree forget the rest of a conversation, or everything of a tenant. Nothing is written or
// copied.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::prune {

// Blocks on the request's path that cover none of its first `tokens_kept` tokens leave the tree, the last first. It
// stops at a block that another one follows or that is in use. Returns how many left.
std::uint64_t conversation(State& state, const Request& request, std::uint32_t tokens_kept);
// Everything under the LoRA adapter, under the salt, or under the pair if both are given, leaves the tree. Returns how
// many blocks left.
std::uint64_t tenant(State& state, std::optional<std::int64_t> lora_id, const Salt& salt);

}  // namespace kvfix::prune
