// Decides where a block belongs: in an eviction queue, with its holders, or nowhere. It must follow every change of
// owners, pins, locks, flight or membership in the tree.
#pragma once

#include "core/state.h"

namespace kvfix {

// Queues the block, frees its slots, or does neither. A block without slots is forgotten.
void review(State& state, Window& window, BlockIndex block);
// Reviews the host tier alone, once the primary slot is gone.
void review_host(Window& window, BlockIndex block);
// The block is in use, so it leaves every queue of victims. A redundant host copy may still be evicted.
void leave_queues(Window& window, BlockIndex block);
// The block's priority has changed. It becomes the newest in every queue where it stands.
void requeue(Window& window, BlockIndex block);

}  // namespace kvfix
