// Slots between the queueing of a copy and its end.
#pragma once

#include <cstdint>
#include <vector>

#include "core/results.h"
#include "core/state.h"

namespace kvfix::transfer {

// Copies a block that is only in host up, as a whole.
void onboard(State& state, Window& window, BlockIndex block);
// Copies a block that is only in primary down, as a whole; it stays in primary as well, until that slot is wanted.
void copy_to_host(State& state, Window& window, BlockIndex block, SlotIndex slot);
// Holds the source for that many copies to come; it leaves the eviction queues.
void lock_source(State& state, Window& window, BlockIndex source, std::uint32_t copies);
// Queues a copy of the locked source's first tokens into the (private, owned) destination.
void copy_prefix(State& state, Window& window, BlockIndex source, BlockIndex destination, std::uint32_t tokens);

// Notes which of the sequence's leading blocks have their bytes on the way, so that fail() finds who holds them.
void wait_for_blocks(State& state, const Window& window, const Sequence& sequence, std::size_t positions);

// Those queued since, in the order in which they must run.
TransferBatch take(State& state);
void complete(State& state, Ticket ticket);
// The ids of the requests that own a block without its bytes now, ascending.
std::vector<RequestId> fail(State& state, Ticket ticket);

}  // namespace kvfix::transfer
