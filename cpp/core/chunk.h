// A prompt that is reserved chunk by chunk: the blocks of each chunk, and the slots that are kept for later chunks. The
// whole prompt of an ordinary request is its first chunk, and nothing is kept for it.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix::chunk {

// Throws std::invalid_argument if chunk_tokens is 0.
void check(std::uint32_t chunk_tokens);
// The most blocks of its own that a prompt can hold in the window at a time: up to `chunk_tokens` positions are
// reserved beyond the computed ones, so its blocks lie within the window and one chunk. No limit for prompts that are
// reserved at once.
std::uint64_t blocks_at_most(const Window& window, const Request& request, std::uint32_t chunk_tokens);

// Appends the prompt's blocks up to `length` positions. The caller has made sure that there are slots for them.
void reserve(State& state, Window& window, Sequence& sequence, std::uint32_t length);

// From now on slots are kept, so that the sequence can hold up to `room` blocks of its own, those that it has included.
void keep(Window& window, Sequence& sequence, std::uint64_t room);
// Blocks before `left` are about to leave the window. Returns how many of their slots come back and stay with the
// sequence.
std::uint64_t blocks_returned(const Window& window, const Sequence& sequence, std::uint32_t left);
void give_back(Window& window, HeldBlocks& held, std::uint64_t blocks);
// Counts slots that were just taken against the kept ones.
void spend(Window& window, HeldBlocks& held, std::uint64_t blocks);
// Keeps what the rest of the prompt still needs, and no more. Slots that pins or transfers hold are made up for as
// others come free.
void settle(Window& window, Sequence& sequence);
void end(Window& window, HeldBlocks& held);

}  // namespace kvfix::chunk
