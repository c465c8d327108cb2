// Owners of blocks. Each call leaves the block where it belongs: queued, free or held.
#pragma once

#include <cstdint>
#include <optional>

#include "core/state.h"

namespace kvfix::hold {

// Adds an owner. Eviction can no longer take the block.
void claim(Window& window, BlockIndex block);
// Fetches what claim() will touch.
inline void prefetch(const Window& window, BlockIndex block) {
    window.primary_queue.prefetch(block);
    if (window.has_host()) {
        window.host_only_queue.prefetch(block);
    }
}
// Removes an owner.
void let_go(State& state, Window& window, BlockIndex block, bool outside = false);
// Removes the sequence as owner of every block, last block first, so that the end of a prefix is evicted before its
// beginning. Slots that were kept for the rest of its prompt are given up.
void let_go_all(State& state, Sequence& sequence);
// Returns a private block with a primary slot and one owner. May evict; the caller has checked Window::allocatable().
BlockIndex allocate(State& state, Window& window, Priority priority, std::optional<std::uint32_t> duration_ms);
// A block without owners, holders and children gives its primary slot to a new private block.
BlockIndex take_over(State& state, Window& window, BlockIndex source, Priority priority,
                     std::optional<std::uint32_t> duration_ms);

}  // namespace kvfix::hold
