// Makes room: chooses what is evicted, and what goes with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::evict {

// Whether so many primary blocks are free, or are the next victims without a search for them. Parents that wait in front
// of a victim may be as many as there are blocks. May say no although they are. For full attention without a host tier.
bool at_hand(const Window& window, std::uint64_t blocks);
// Returns a free slot, and evicts if there is none. The caller has checked Window::allocatable().
SlotIndex take_primary_slot(State& state, Window& window);
// The same in host. Returns kNone if nothing there can go. `evicted`: the block that the slot is for, if that was evicted;
// then HostAdmission decides whether another may go for it.
SlotIndex take_host_slot(State& state, Window& window, BlockIndex evicted = kNone);
// The block stays in primary alone. The caller has checked that nothing holds its host slot.
void drop_host_copy(Window& window, BlockIndex block);
// Hands the block's primary slot to the caller. The block's parent may be a victim now.
SlotIndex detach_primary(Window& window, BlockIndex block);
// Removes the block and its descendants from the tree. Returns how many.
std::uint64_t drop(State& state, Window& window, BlockIndex block);
// Everything that can be found is removed in steps, so that other calls come between them. From begin_reset() until
// reset_some() has returned true, nothing is found, and nothing enters the tree: what a step has passed stays empty.
struct Sweep {
    std::size_t window = 0;
    std::uint32_t block = 0;
};
void begin_reset(State& state);
// Removes up to so many blocks. Returns whether that was the last step.
bool reset_some(State& state, Sweep& sweep, std::uint32_t blocks_max);

}  // namespace kvfix::evict
