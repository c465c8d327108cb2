// Where a block belongs: in an eviction queue, with its holders, or nowhere. Follows every change of owners, pins, locks, flight or
// membership in the tree.
#pragma once

#include "core/state.h"

namespace kvfix {

// Queues the block, frees its slots, or neither; a block without slots is forgotten.
void review(State& state, Window& window, BlockIndex block);
// The host tier alone: its primary slot has gone.
void review_host(Window& window, BlockIndex block);
// The block is in use: it stands in no queue of victims. A redundant host copy may still go.
void leave_queues(Window& window, BlockIndex block);
// Its priority has changed: it becomes the newest wherever it queues.
void requeue(Window& window, BlockIndex block);

}  // namespace kvfix
