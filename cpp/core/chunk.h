// A prompt that is reserved chunk by chunk: the blocks of each chunk, and the slots that are kept for the chunks to come. Of an
// ordinary request the whole prompt is its first chunk, and nothing is kept.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix::chunk {

// Throws std::invalid_argument for chunks of nothing.
void check(std::uint32_t chunk_tokens);
// No prompt holds more blocks of its own in the window at a time: with up to `chunk_tokens` positions reserved beyond those that are
// computed, they lie within the window and a chunk. kNone for prompts that are reserved at once.
std::uint64_t blocks_at_most(const Window& window, const Request& request, std::uint32_t chunk_tokens);

// Appends the prompt's blocks up to `length` positions. There are slots for them.
void reserve(State& state, Window& window, Sequence& sequence, std::uint32_t length);

// From now on slots are kept, so that the sequence holds up to `room` blocks of its own: those that it has count.
void keep(Window& window, Sequence& sequence, std::uint64_t room);
// Blocks before `left` are about to leave: how many slots come back, and stay with the sequence.
std::uint64_t blocks_returned(const Window& window, const Sequence& sequence, std::uint32_t left);
void give_back(Window& window, HeldBlocks& held, std::uint64_t blocks);
// Of slots that were just taken, those that had been kept.
void spend(Window& window, HeldBlocks& held, std::uint64_t blocks);
// Keeps what the rest of the prompt still needs, and no more. What pins or transfers hold on to is made up for as slots come free.
void settle(Window& window, Sequence& sequence);
void end(Window& window, HeldBlocks& held);

}  // namespace kvfix::chunk
