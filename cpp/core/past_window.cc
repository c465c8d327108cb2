#include "core/past_window.h"

#include <algorithm>

#include "core/chunk.h"
#include "core/hold.h"
#include "core/store.h"

namespace kvfix::past_window {
namespace {

void let_go_shared(State& state, Window& window, Sequence& sequence, std::uint32_t position) {
    const BlockIndex block = sequence.windows[window.index].take_away(0, position);
    const Block& record = window.blocks[block];
    if (record.undelivered || record.in_flight(kPrimary)) {
        sequence.doubtful_from = std::min(sequence.doubtful_from, position);
    }
    hold::let_go(state, window, block, true);
}

// Blocks before `left` will not be read again by this sequence: they stay findable if they can, and are let go.
void leave(State& state, Window& window, Sequence& sequence, std::uint32_t left) {
    HeldBlocks& held = sequence.windows[window.index];
    if (left <= held.left) {
        return;
    }
    chunk::give_back(window, held, chunk::blocks_returned(window, sequence, left));
    store::full_blocks(state, window, sequence, std::min(left * state.tokens_per_block(), sequence.storable()));
    for (std::uint32_t position = held.left; position < left; ++position) {
        if (position < held.shared.size()) {
            let_go_shared(state, window, sequence, position);
            continue;
        }
        for (std::uint32_t beam = 0; beam < held.tails.size(); ++beam) {
            hold::let_go(state, window, held.take_away(beam, position), true);
        }
    }
    held.left = left;
}

}  // namespace

std::uint32_t blocks_behind(const Window& window, std::uint32_t computed) {
    return computed > window.reach() ? (computed - window.reach()) / window.blocks.tokens_per_block() : 0;
}

// The next position to be computed is the first that is not; it and all behind it look back no further than the window.
void let_go(State& state, Sequence& sequence) {
    for (Window& window : state.windows) {
        if (const std::uint32_t left = blocks_behind(window, sequence.computed); left != 0) {
            leave(state, window, sequence, left);
        }
    }
}

}  // namespace kvfix::past_window
