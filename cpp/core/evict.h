// Makes room: chooses what is evicted, and what goes with it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::evict {

// Whether so many primary blocks are free, or are the next victims without a search for them. Parents that wait in front
// of a victim may be as many as there are blocks. May say no although they are. For full attention without a host tier.
bool at_hand(const Window& window, std::uint64_t blocks);
// Returns a free slot, and evicts if there is none. The caller has checked Window::allocatable().
SlotIndex take_primary_slot(State& state, Window& window);
// The same in host. Returns kNone if nothing there can go.
SlotIndex take_host_slot(State& state, Window& window);
// The block stays in primary alone. The caller has checked that nothing holds its host slot.
void drop_host_copy(Window& window, BlockIndex block);
// Hands the block's primary slot to the caller. The block's parent may be a victim now.
SlotIndex detach_primary(Window& window, BlockIndex block);
// Removes the block and its descendants from the tree. Returns how many.
std::uint64_t drop(State& state, Window& window, BlockIndex block);
// Removes everything that can be found, in all windows.
void drop_everything(State& state);

}  // namespace kvfix::evict
