// What is forgotten by name: the rest of a conversation, or all of a tenant. Nothing is written or copied.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::prune {

// Blocks on the request's path that cover none of its first `tokens_kept` tokens leave the tree, the last first, up to one that
// something follows or anybody uses. How many.
std::uint64_t conversation(State& state, const Request& request, std::uint32_t tokens_kept);
// Everything under the LoRA adapter, under the salt, or under both where both are given, leaves the tree. How many blocks.
std::uint64_t tenant(State& state, std::optional<std::int64_t> lora_id, const Salt& salt);

}  // namespace kvfix::prune
