// Retention of cached blocks: priorities, and durations whose clocks run while a block is cached in primary.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::retain {

void set(State& state, Window& window, BlockIndex block, Priority priority, std::optional<std::uint32_t> duration_ms);
// The block has become cached in primary.
void start_clock(const State& state, Window& window, BlockIndex block);
// The block has been claimed, or has left the tree.
void stop_clock(Window& window, BlockIndex block);
void forget(Window& window, BlockIndex block);
// Ends the durations that are over by then. Throws std::invalid_argument if time runs backwards or is out of range.
void advance_time(State& state, std::int64_t now_ms);

}  // namespace kvfix::retain
