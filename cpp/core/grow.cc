#include "core/grow.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/chunk.h"
#include "core/errors.h"
#include "core/evict.h"
#include "core/hold.h"
#include "core/past_window.h"

namespace kvfix::grow {
namespace {

// Blocks that `count` positions behind the first `length` take beyond those that these have. Few steps reach behind the last
// block, so that this divides once.
std::uint32_t blocks_behind_last(std::uint32_t length, std::uint32_t count, std::uint32_t tokens_per_block) {
    const std::uint32_t over = length % tokens_per_block;
    const std::uint32_t left = over == 0 ? 0 : tokens_per_block - over;
    return count <= left ? 0 : ceil_div(count - left, tokens_per_block);
}

// Full attention, which nothing leaves, is alone in its manager.
bool slides(const BlockManagerConfig& config) { return config.windows.front().window_size.has_value(); }

bool may_be_short(const BlockManagerConfig& config) {
    return !slides(config) && config.windows.front().blocks_host == 0;
}

void check_sizes(std::size_t ids, std::size_t counts, std::size_t computed) {
    const auto check_size = [ids](std::size_t size, const char* what) {
        if (size != ids) {
            throw std::invalid_argument("add_tokens: " + std::to_string(ids) + " request ids but " +
                                        std::to_string(size) + what);
        }
    };
    check_size(counts, " counts");
    check_size(computed, " numbers of computed positions");
}

// Counts the step's positions behind the prompt. Without `chunked` every prompt is reserved to its end. check_step()
// refuses more than there can be.
std::uint32_t values_of(const Step& step, bool chunked) {
    if (!chunked) [[likely]] {
        return step.count;
    }
    const std::uint32_t prompt = step.sequence->prompt_length();
    return std::max(step.sequence->length + step.count, prompt) - step.sequence->values_begin();
}

[[gnu::always_inline]] inline void check_step(const Step& step, bool has_tokens, bool chunked) {
    const Sequence& sequence = *step.sequence;
    const auto refuse = [&](const std::string& why) {
        throw std::invalid_argument("request " + std::to_string(sequence.id()) + ", " + why);
    };
    if (step.count > kNone / 2 - sequence.length) {
        refuse("counts: " + std::to_string(step.count) + " more tokens are over the limit of " +
               std::to_string(kNone / 2));
    }
    const std::uint32_t values_begin = chunked ? sequence.values_begin() : sequence.length;
    if (has_tokens && values_of(step, chunked) != 0 && sequence.known() != values_begin) {
        refuse("tokens: positions " + std::to_string(sequence.known()) + " to " + std::to_string(sequence.length) +
               " were grown without values, so later values have no place");
    }
    if (has_tokens && sequence.beam_width() > 1) {
        refuse("tokens: with beam_width " + std::to_string(sequence.beam_width()) + " each beam has tokens of its own");
    }
    check_computed(sequence, step.computed);
}

// Blocks that the step takes in a window without chunks, after it was checked.
[[gnu::always_inline]] inline std::uint64_t measure(Step& step, std::uint32_t tokens_per_block, bool has_tokens,
                                                    bool chunked) {
    check_step(step, has_tokens, chunked);
    step.blocks = blocks_behind_last(step.sequence->length, step.count, tokens_per_block);
    return std::uint64_t{step.blocks} * step.sequence->beam_width();
}

void check_tokens(std::span<const TokenId> tokens, std::span<const Step> steps, bool chunked) {
    std::uint64_t total = 0;
    for (const Step& step : steps) {
        total += values_of(step, chunked);
    }
    if (tokens.size() != total) {
        throw std::invalid_argument("add_tokens: " + std::to_string(tokens.size()) + " token values for " +
                                    std::to_string(total) + " new positions behind the prompts");
    }
    if (const auto negative = find_negative(tokens)) {
        refuse_negative("add_tokens, tokens", tokens, *negative);
    }
}

// Blocks that leave in the same call come back first, then kept ones are taken; the rest is free for anybody. If pins
// hold some of the kept ones, the first to come is served.
void check_chunks(const State& state, const Window& window, std::span<const Step> steps) {
    std::uint64_t kept = 0;
    std::uint64_t others = 0;
    for (const Step& step : steps) {
        const Sequence& sequence = *step.sequence;
        const std::uint32_t left = past_window::blocks_behind(window, std::max(sequence.computed, step.computed));
        const std::uint64_t needed = blocks_taken(sequence, step.count, state.tokens_per_block());
        const std::uint64_t beyond = needed - std::min(needed, chunk::blocks_returned(window, sequence, left));
        const std::uint64_t own = std::min<std::uint64_t>(beyond, sequence.windows[window.index].kept);
        kept += own;
        others += beyond - own;
    }
    if (others > window.allocatable()) {
        throw OutOfBlocks(others, window.allocatable(), window.config.window_size);
    }
    if (kept > window.there()) {
        throw OutOfBlocks(kept, window.there(), window.config.window_size);
    }
}

// `needed`: blocks that all steps take in a window without chunks.
void check_capacity(const State& state, std::span<const Step> steps, std::uint64_t needed) {
    for (const Window& window : state.windows) {
        if (window.chunked != 0) {
            check_chunks(state, window, steps);
        } else if (needed > window.allocatable()) {
            throw OutOfBlocks(needed, window.allocatable(), window.config.window_size);
        }
    }
}

// Reserves the next chunk of a prompt that was not reserved as a whole. Growth reserves what the step has behind it.
void reserve_prompt(State& state, Sequence& sequence, std::uint32_t length) {
    const std::uint32_t tokens_per_block = state.tokens_per_block();
    const std::uint64_t blocks = blocks_over(*sequence.request, length, tokens_per_block) -
                                 blocks_over(*sequence.request, sequence.length, tokens_per_block);
    for (Window& window : state.windows) {
        chunk::reserve(state, window, sequence, length);
        chunk::spend(window, sequence.windows[window.index], blocks);
    }
    sequence.length = length;
    sequence.stats.blocks_new += blocks * state.windows.size();
    state.current.blocks_new += blocks * state.windows.size();
}

void take_step(State& state, const Step& step, bool chunked) {
    Sequence& sequence = *step.sequence;
    sequence.computed = std::max(sequence.computed, step.computed);
    if (slides(state.config)) {
        past_window::let_go(state, sequence);
    }
    const std::uint32_t length = sequence.length + step.count;
    std::uint32_t blocks = step.blocks;
    if (chunked && sequence.length < sequence.prompt_length()) {
        reserve_prompt(state, sequence, std::min(length, sequence.prompt_length()));
        blocks = blocks_behind_last(sequence.length, length - sequence.length, state.tokens_per_block());
    }
    sequence.length = length;
    if (blocks == 0) {
        return;
    }
    const auto& retention = sequence.request->retention;
    const Priority priority = retention ? retention->decode_priority : kPriorityDefault;
    const auto duration_ms = retention ? retention->decode_duration_ms : std::nullopt;
    for (Window& window : state.windows) {
        HeldBlocks& held = sequence.windows[window.index];
        for (std::uint32_t beam = 0; beam < sequence.beam_width(); ++beam) {
            for (std::uint32_t i = 0; i < blocks; ++i) {
                held.append(beam, hold::allocate(state, window, priority, duration_ms));
            }
        }
    }
    const std::uint64_t grown = std::uint64_t{blocks} * sequence.beam_width() * state.windows.size();
    sequence.stats.blocks_grown += grown;
    state.current.blocks_grown += grown;
}

bool has_chunks(const State& state) {
    return std::ranges::any_of(state.windows, [](const Window& window) { return window.chunked != 0; });
}

// One sequence of a call that has a mark of its own.
[[gnu::always_inline]] inline Sequence& find_once(State& state, RequestId id) {
    Sequence& sequence = state.sequences.at(id);
    if (sequence.mark == state.mark) {
        throw std::invalid_argument("request " + std::to_string(id) + ", request_ids: twice in one call");
    }
    sequence.mark = state.mark;
    return sequence;
}

// Fills the steps. Blocks that all of them take in a window without chunks.
std::uint64_t fill_steps(State& state, std::vector<Step>& steps, const Growth& growth, bool chunked) {
    const auto& [ids, counts, tokens, computed] = growth;
    check_sizes(ids.size(), counts.size(), computed ? computed->size() : ids.size());
    steps.clear();
    ++state.mark;
    std::uint64_t blocks = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        Sequence& sequence = find_once(state, ids[i]);
        Step& step = steps.emplace_back(Step{&sequence, counts[i], computed ? (*computed)[i] : 0, 0});
        blocks += measure(step, state.tokens_per_block(), tokens.has_value(), chunked);
    }
    return blocks;
}

Plan checked(const State& state, const Plan& plan) {
    if (plan.tokens) {
        check_tokens(*plan.tokens, plan.steps, plan.chunked);
    }
    check_capacity(state, plan.steps, plan.blocks);
    return plan;
}

void check_rewind(const State& state, const Sequence& sequence, std::uint32_t count) {
    const std::string who = "request " + std::to_string(sequence.id()) + ", count: ";
    const std::uint32_t grown = sequence.values_begin() - sequence.prompt_length();
    if (count > grown) {
        throw std::invalid_argument(who + std::to_string(count) + " is more than the " + std::to_string(grown) +
                                    " tokens grown since the prompt");
    }
    const std::uint32_t computed = std::min(sequence.computed, sequence.length - count);
    for (const Window& window : state.windows) {
        const std::uint32_t may_have_left = past_window::blocks_behind(window, computed);
        if (sequence.windows[window.index].left > may_have_left) {
            throw std::invalid_argument(who + "rewinding by " + std::to_string(count) + " needs block " +
                                        std::to_string(may_have_left) + ", which has left the window of " +
                                        std::to_string(window.reach()));
        }
    }
}

}  // namespace

std::uint64_t blocks_taken(const Sequence& sequence, std::uint32_t count, std::uint32_t tokens_per_block) {
    if (sequence.length < sequence.prompt_length()) {
        return blocks_over(*sequence.request, sequence.length + count, tokens_per_block) -
               blocks_over(*sequence.request, sequence.length, tokens_per_block);
    }
    return std::uint64_t{blocks_behind_last(sequence.length, count, tokens_per_block)} * sequence.beam_width();
}

bool are_few(const BlockManagerConfig& config, const Growth& growth) {
    if (!may_be_short(config)) {
        return false;
    }
    std::uint64_t positions = 0;
    for (const std::uint32_t count : growth.counts) {
        positions += count;
    }
    return growth.ids.size() <= kFew && positions <= kFew;
}

bool are_few(const BlockManagerConfig& config, const DecodeBatch& batch) {
    return may_be_short(config) && batch.ids.size() <= kFew;
}

Plan plan(State& state, std::vector<Step>& steps, const Growth& growth) {
    const bool chunked = has_chunks(state);
    const std::uint64_t blocks = fill_steps(state, steps, growth, chunked);  // before anybody takes a span of the steps
    return checked(state, {steps, growth.tokens, blocks, chunked});
}

Plan plan(State& state, DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens, bool computed) {
    const bool chunked = has_chunks(state);
    if (batch.looked_up != state.sequences.ended()) {
        look_up(state, batch);
    }
    std::uint64_t blocks = 0;
    for (Step& step : batch.steps) {
        state.sequences.begin_change(*step.sequence);
        step.computed = computed ? step.sequence->length : 0;
        blocks += measure(step, state.tokens_per_block(), tokens.has_value(), chunked);
    }
    return checked(state, {batch.steps, tokens, blocks, chunked});
}

void look_up(State& state, DecodeBatch& batch) {
    batch.steps.clear();
    ++state.mark;
    for (const RequestId id : batch.ids) {
        batch.steps.push_back({.sequence = &find_once(state, id), .count = 1, .computed = 0, .blocks = 0});
    }
    batch.looked_up = state.sequences.ended();
}

bool is_short(const State& state, const Plan& plan) {
    return !plan.chunked && plan.blocks <= kFew && evict::at_hand(state.windows[0], plan.blocks);
}

void carry_out(State& state, const Plan& plan) {
    const auto& [steps, tokens, blocks, chunked] = plan;
    const TokenId* next = tokens ? tokens->data() : nullptr;
    for (const Step& step : steps) {
        const std::uint32_t values = next != nullptr ? values_of(step, chunked) : 0;
        take_step(state, step, chunked);
        if (values != 0) {
            step.sequence->learn({next, values});
            next += values;
        }
    }
    if (!chunked) {
        return;
    }
    for (Window& window : state.windows) {
        for (const Step& step : steps) {
            chunk::settle(window, *step.sequence);
        }
    }
}

void rewind(State& state, RequestId id, std::uint32_t count) {
    Sequence& sequence = state.sequences.at(id);
    check_rewind(state, sequence, count);
    const std::uint32_t length = sequence.length - count;
    const std::size_t blocks = ceil_div(length, state.tokens_per_block());
    for (Window& window : state.windows) {
        HeldBlocks& held = sequence.windows[window.index];
        held.sure = std::min(held.sure, static_cast<std::uint32_t>(blocks));
        for (std::uint32_t beam = 0; beam < sequence.beam_width(); ++beam) {
            while (held.size_of(beam) > blocks) {
                hold::let_go(state, window, held.take_last(beam));
            }
        }
    }
    sequence.length = length;
    sequence.computed = std::min(sequence.computed, length);
    sequence.forget(sequence.values_begin(), state.tokens_per_block());
}

// If a caller reported too much, others would find bytes that were never written.
void check_computed(const Sequence& sequence, std::uint32_t computed) {
    if (computed > sequence.length) {
        throw std::invalid_argument("request " + std::to_string(sequence.id()) + ", computed: " +
                                    std::to_string(computed) + " is more than the " + std::to_string(sequence.length) +
                                    " positions that it has (those that this call reserves do not count)");
    }
}

}  // namespace kvfix::grow
