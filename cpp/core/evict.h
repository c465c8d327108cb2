// What goes when room is needed, and what goes with it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::evict {

// A free slot, by eviction where there is none. The caller has checked Window::allocatable().
SlotIndex take_primary_slot(State& state, Window& window);
// The same in host; kNone where nothing there can go.
SlotIndex take_host_slot(State& state, Window& window);
// The block stays in primary alone. Nothing holds its host slot.
void drop_host_copy(Window& window, BlockIndex block);
// The block's primary slot becomes the caller's; its parent may be a victim now.
SlotIndex detach_primary(Window& window, BlockIndex block);
// Removes the block and its descendants from the tree, and counts them.
std::uint64_t drop(State& state, Window& window, BlockIndex block);
// Everything that can be found, in all windows.
void drop_everything(State& state);

}  // namespace kvfix::evict
