// Events about full blocks in the tree, told when the decision is made.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix {

// Nothing where nobody wants events, or where the block is private or incomplete.
void publish(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
             std::optional<std::int64_t> lora_id = std::nullopt);

}  // namespace kvfix
