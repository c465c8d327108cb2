// Owners of blocks. Each call leaves the block where it belongs: queued, free, or held.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::hold {

// One owner more: the block is out of eviction's reach.
void claim(Window& window, BlockIndex block);
// One owner less.
void let_go(State& state, Window& window, BlockIndex block, bool outside = false);
// Of every block of a sequence, last block first, so that the end of a prefix is evicted before its beginning. Slots kept for the
// rest of its prompt are kept no more.
void let_go_all(State& state, Sequence& sequence);
// A private block with a primary slot and one owner. Evicts; the caller has checked Window::allocatable().
BlockIndex allocate(State& state, Window& window, Priority priority, std::optional<std::uint32_t> duration_ms);
// The unowned, unheld, childless block gives its primary slot to a new private block.
BlockIndex take_over(State& state, Window& window, BlockIndex source, Priority priority,
                     std::optional<std::uint32_t> duration_ms);

}  // namespace kvfix::hold
