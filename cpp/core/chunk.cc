#include "core/chunk.h"

#include <algorithm>
#include <stdexcept>

#include "core/hold.h"

namespace kvfix::chunk {
namespace {

// The blocks of the prompt that are still to be reserved in one window.
std::uint64_t blocks_to_come(const Sequence& sequence, std::uint32_t tokens_per_block) {
    const std::uint32_t prompt = sequence.prompt_length();
    return blocks_over(*sequence.request, prompt, tokens_per_block) -
           blocks_over(*sequence.request, std::min(sequence.length, prompt), tokens_per_block);
}

std::uint64_t own_blocks(const Sequence& sequence, const HeldBlocks& held, std::uint32_t tokens_per_block) {
    return blocks_over(*sequence.request, sequence.length, tokens_per_block) - std::max(held.left, sequence.claimed);
}

void set_kept(Window& window, HeldBlocks& held, std::uint64_t blocks) {
    window.slots_kept = window.slots_kept - held.kept + blocks;
    held.kept = static_cast<std::uint32_t>(blocks);
}

}  // namespace

void check(std::uint32_t chunk_tokens) {
    if (chunk_tokens == 0) {
        throw std::invalid_argument("chunk_tokens is 0: a chunk has at least one token");
    }
}

std::uint64_t blocks_at_most(const Window& window, const Request& request, std::uint32_t chunk_tokens) {
    if (chunk_tokens == kNone || window.reach() == kNone) {
        return ~std::uint64_t{0};
    }
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint64_t positions = std::uint64_t{window.reach()} + chunk_tokens;
    // whatever position they begin at
    const std::uint64_t touched = (positions + tokens_per_block - 2) / tokens_per_block + 1;
    const bool per_beam = request.num_tokens() % tokens_per_block != 0;
    return touched + (per_beam ? request.beam_width - 1 : 0);
}

void reserve(State& state, Window& window, Sequence& sequence, std::uint32_t length) {
    const Request& request = *sequence.request;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint32_t full_prompt = request.num_tokens() / tokens_per_block;
    HeldBlocks& held = sequence.windows[window.index];
    const auto allocate = [&](std::uint32_t position) {
        const auto [priority, duration_ms] = request.block_retention(position * tokens_per_block);
        return hold::allocate(state, window, priority, duration_ms);
    };
    const std::uint32_t blocks = ceil_div(length, tokens_per_block);
    while (held.shared.size() < std::min(blocks, full_prompt)) {
        held.append(0, allocate(static_cast<std::uint32_t>(held.shared.size())));
    }
    if (request.beam_width > 1 && held.tails.empty() && held.shared.size() == full_prompt) {
        held.tails.resize(request.beam_width);
    }
    if (held.size() < blocks) {
        for (std::uint32_t beam = 0; beam < request.beam_width; ++beam) {
            held.append(beam, allocate(full_prompt));
        }
    }
}

void keep(Window& window, Sequence& sequence, std::uint64_t room) {
    HeldBlocks& held = sequence.windows[window.index];
    held.room = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, kNone));
    held.rolls = true;
    ++window.chunked;
    settle(window, sequence);
}

std::uint64_t blocks_returned(const Window& window, const Sequence& sequence, std::uint32_t left) {
    const HeldBlocks& held = sequence.windows[window.index];
    std::uint64_t out = 0;
    for (std::uint32_t position = std::max(held.left, sequence.claimed); held.rolls && position < left; ++position) {
        const Block& record = window.blocks[held.shared[position]];
        const bool others = record.owners != 1 || record.pins[kPrimary] != 0 || record.locks[kPrimary] != 0;
        out += others || record.in_flight(kPrimary) ? 0 : 1;
    }
    return out;
}

void give_back(Window& window, HeldBlocks& held, std::uint64_t blocks) { set_kept(window, held, held.kept + blocks); }

void spend(Window& window, HeldBlocks& held, std::uint64_t blocks) {
    set_kept(window, held, held.kept - std::min<std::uint64_t>(held.kept, blocks));
}

void settle(Window& window, Sequence& sequence) {
    HeldBlocks& held = sequence.windows[window.index];
    if (held.room == 0) {
        return;
    }
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint64_t to_come = blocks_to_come(sequence, tokens_per_block);
    const std::uint64_t own = std::min<std::uint64_t>(held.room, own_blocks(sequence, held, tokens_per_block));
    const std::uint64_t wanted = held.rolls ? std::min(to_come, held.room - own) : to_come;
    set_kept(window, held, std::min(wanted, held.kept + window.allocatable()));
    held.rolls = held.kept != to_come;
    if (sequence.length >= sequence.prompt_length()) {
        end(window, held);
    }
}

void end(Window& window, HeldBlocks& held) {
    set_kept(window, held, 0);
    window.chunked -= held.room == 0 ? 0 : 1;
    held.room = 0;
    held.rolls = false;
}

}  // namespace kvfix::chunk
