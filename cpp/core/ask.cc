#include "core/ask.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "core/chunk.h"
#include "core/grow.h"

namespace kvfix::ask {
namespace {

void check_each_once(std::span<const RequestId> ids, const char* call) {
    std::vector<RequestId> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
        throw std::invalid_argument(std::string(call) + ", request_ids: " + std::to_string(*twice) + " is named twice");
    }
}

// The blocks that each beam takes for `count` more positions behind `length`.
std::uint64_t blocks_behind(std::uint64_t length, std::uint64_t count, std::uint64_t tokens_per_block) {
    const auto blocks = [tokens_per_block](std::uint64_t tokens) {
        return (tokens + tokens_per_block - 1) / tokens_per_block;
    };
    return blocks(length + count) - blocks(length);
}

// Counts as growth does, but for any count.
std::uint64_t blocks_taken(const Sequence& sequence, std::uint64_t count, std::uint32_t tokens_per_block) {
    const std::uint32_t of_prompt = sequence.values_begin() - sequence.length;
    if (count > of_prompt) {
        return grow::blocks_taken(sequence, of_prompt, tokens_per_block) +
               blocks_behind(sequence.values_begin(), count - of_prompt, tokens_per_block) * sequence.beam_width();
    }
    return grow::blocks_taken(sequence, static_cast<std::uint32_t>(count), tokens_per_block);
}

}  // namespace

std::vector<std::uint64_t> blocks_to_admit(const State& state, AdmissionPlanner& planner, const RequestPtr& request,
                                           std::uint32_t tokens_new_max, std::uint32_t chunk_tokens) {
    chunk::check(chunk_tokens);
    const RequestPlan& plan = planner.match(state, {&request, 1}, chunk_tokens).requests.front();
    planner.try_fit(state, 1);
    std::vector<std::uint64_t> out = planner.slots_taken(state, 1);
    const std::uint64_t own = blocks_over(*request, request->num_tokens(), state.tokens_per_block()) - plan.full;
    const std::uint64_t grown =
        blocks_behind(request->num_tokens(), tokens_new_max, state.tokens_per_block()) * request->beam_width;
    for (const Window& window : state.windows) {
        const std::uint64_t most = chunk::blocks_at_most(window, *request, chunk_tokens);
        const bool rolls = most < own + grown;  // each beam may then fill the window, as far as it grows
        out[window.index] += rolls ? std::min(grown, most * request->beam_width - std::min(own, most)) : grown;
    }
    return out;
}

std::uint64_t blocks_to_grow(const State& state, std::span<const RequestId> ids,
                             std::span<const std::uint32_t> counts) {
    if (counts.size() != ids.size()) {
        throw std::invalid_argument("blocks_to_grow: " + std::to_string(ids.size()) + " request ids but " +
                                    std::to_string(counts.size()) + " counts");
    }
    check_each_once(ids, "blocks_to_grow");
    std::vector<std::uint64_t> out(state.windows.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Sequence& sequence = state.sequences.at(ids[i]);
        const std::uint64_t needed = blocks_taken(sequence, counts[i], state.tokens_per_block());
        for (const Window& window : state.windows) {
            out[window.index] += needed - std::min<std::uint64_t>(needed, sequence.windows[window.index].kept);
        }
    }
    return std::ranges::max(out);
}

std::vector<std::uint64_t> free_blocks_without(const State& state, std::span<const RequestId> ids) {
    check_each_once(ids, "free_blocks_without");
    std::vector<std::uint64_t> out;
    for (const Window& window : state.windows) {
        std::uint64_t blocks_free = window.there();
        std::uint64_t kept = window.slots_kept;
        std::unordered_map<BlockIndex, std::uint32_t> owners_gone;
        for (const RequestId id : ids) {
            const HeldBlocks& held = state.sequences.at(id).windows[window.index];
            kept -= held.kept;
            held.for_each([&](BlockIndex block) {
                const Block& record = window.blocks[block];
                const bool held_otherwise =
                    record.pins[kPrimary] != 0 || record.locks[kPrimary] != 0 || record.in_flight(kPrimary);
                if (++owners_gone[block] == record.owners && !held_otherwise) {
                    ++blocks_free;
                }
            });
        }
        out.push_back(blocks_free - std::min(blocks_free, kept));
    }
    return out;
}

std::uint32_t front_blocks_removed(const State& state, RequestId id, WindowSize window_size) {
    const Window& window = window_of(state, window_size);
    return state.sequences.at_any(id).windows[window.index].left;
}

Priority priority_of(const State& state, BlockId id) {
    const auto [window, block] = place_of(state, id);
    return window->blocks[block].priority;
}

}  // namespace kvfix::ask
