// Slots while a copy is queued or under way.
#pragma once

#include <cstdint>
#include <vector>

#include "core/results.h"
#include "core/state.h"

namespace kvfix::transfer {

// Queues a copy to primary of a whole block that is only in host.
void onboard(State& state, Window& window, BlockIndex block);
// Queues a copy to host of a whole block that is only in primary. It stays in primary too, until that slot is wanted.
void copy_to_host(State& state, Window& window, BlockIndex block, SlotIndex slot);
// Locks the source for that many copies to come, so it leaves the eviction queues.
void lock_source(State& state, Window& window, BlockIndex source, std::uint32_t copies);
// Queues a copy of the locked source's first tokens into the (private, owned) destination.
void copy_prefix(State& state, Window& window, BlockIndex source, BlockIndex destination, std::uint32_t tokens);

// Notes which of the sequence's leading blocks have their bytes on the way, so that fail() finds the sequences that
// hold them.
void wait_for_blocks(State& state, const Window& window, const Sequence& sequence, std::size_t positions);

// Takes the copies queued since the last call, in the order in which they must run.
TransferBatch take(State& state);
void complete(State& state, Ticket ticket);
// Returns the ids of the requests that own a block without its bytes now, ascending.
std::vector<RequestId> fail(State& state, Ticket ticket);

}  // namespace kvfix::transfer
