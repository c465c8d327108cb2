// Decode growth and rewind.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/block_manager.h"

namespace kvfix {

void BlockManager::add_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                              std::optional<std::span<const TokenId>> tokens,
                              std::optional<std::span<const std::uint32_t>> computed) {
    const ManagerGuard guard(mutex_);
    plan_growth(ids, counts, tokens, computed);
    check_growth_capacity();
    const TokenId* next = tokens ? tokens->data() : nullptr;
    for (const Growth& growth : growth_) {
        grow(growth);
        if (next != nullptr) {
            std::vector<TokenId>& known = growth.sequence->grown_tokens;
            known.insert(known.end(), next, next + growth.count);
            next += growth.count;
        }
    }
}

// Told too much, others would find bytes that nobody has written.
void BlockManager::check_computed(const Sequence& sequence, std::uint32_t computed) {
    if (computed > sequence.length) {
        throw std::invalid_argument("request " + std::to_string(sequence.id()) + ", computed: " +
                                    std::to_string(computed) + " is more than the " + std::to_string(sequence.length) +
                                    " positions that it has (those that this call reserves do not count)");
    }
}

void BlockManager::plan_growth(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                               std::optional<std::span<const TokenId>> tokens,
                               std::optional<std::span<const std::uint32_t>> computed) {
    const auto check_size = [&](std::size_t size, const char* what) {
        if (size != ids.size()) {
            throw std::invalid_argument("add_tokens: " + std::to_string(ids.size()) + " request ids but " +
                                        std::to_string(size) + what);
        }
    };
    check_size(counts.size(), " counts");
    check_size(computed ? computed->size() : ids.size(), " numbers of computed positions");
    growth_.clear();
    ++mark_;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        Sequence& sequence = sequences_.at(ids[i]);
        const auto refuse = [&](const std::string& why) {
            throw std::invalid_argument("request " + std::to_string(ids[i]) + ", " + why);
        };
        if (sequence.mark == mark_) {
            refuse("request_ids: twice in one call");
        }
        sequence.mark = mark_;
        if (counts[i] > kNone / 2 - sequence.length) {
            refuse("counts: " + std::to_string(counts[i]) + " more tokens are over the limit of " +
                   std::to_string(kNone / 2));
        }
        if (tokens && counts[i] != 0 && sequence.known() != sequence.length) {
            refuse("tokens: positions " + std::to_string(sequence.known()) + " to " + std::to_string(sequence.length) +
                   " were grown without values, so later values have no place");
        }
        if (tokens && sequence.beam_width() > 1) {
            refuse("tokens: with beam_width " + std::to_string(sequence.beam_width()) +
                   " each beam has tokens of its own");
        }
        growth_.push_back({&sequence, counts[i], computed ? (*computed)[i] : 0});
        check_computed(sequence, growth_.back().computed);
        total += counts[i];
    }
    if (tokens && tokens->size() != total) {
        throw std::invalid_argument("add_tokens: " + std::to_string(tokens->size()) + " token values for " +
                                    std::to_string(total) + " new positions");
    }
    if (const auto negative = tokens ? find_negative(*tokens) : std::nullopt) {
        refuse_negative("add_tokens, tokens", *tokens, *negative);
    }
}

void BlockManager::check_growth_capacity() const {
    std::uint64_t needed = 0;
    for (const auto& [sequence, count, computed] : growth_) {
        const std::uint32_t blocks = ceil_div(sequence->length + count, config_.tokens_per_block) -
                                     ceil_div(sequence->length, config_.tokens_per_block);
        needed += std::uint64_t{blocks} * sequence->beam_width();
    }
    for (const auto& pool : pools_) {
        if (needed > pool->allocatable()) {
            throw OutOfBlocks(needed, pool->allocatable(), pool->config.window_size);
        }
    }
}

void BlockManager::grow(const Growth& growth) {
    Sequence& sequence = *growth.sequence;
    sequence.computed = std::max(sequence.computed, growth.computed);
    leave_windows(sequence);
    const std::uint32_t blocks_before = ceil_div(sequence.length, config_.tokens_per_block);
    sequence.length += growth.count;
    const std::uint32_t blocks = ceil_div(sequence.length, config_.tokens_per_block) - blocks_before;
    if (blocks == 0) {
        return;
    }
    const auto& retention = sequence.request->retention;
    const Priority priority = retention ? retention->decode_priority : kPriorityDefault;
    const auto duration_ms = retention ? retention->decode_duration_ms : std::nullopt;
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        HeldBlocks& held = sequence.windows[window];
        for (std::uint32_t beam = 0; beam < sequence.beam_width(); ++beam) {
            std::vector<BlockIndex>& list = held.tails.empty() ? held.shared : held.tails[beam];
            for (std::uint32_t i = 0; i < blocks; ++i) {
                list.push_back(pools_[window]->allocate(priority, duration_ms));
            }
        }
    }
    const std::uint64_t grown = std::uint64_t{blocks} * sequence.beam_width() * pools_.size();
    sequence.stats.blocks_grown += grown;
    current_.blocks_grown += grown;
}

// The next position to be computed is the first that is not; it and all behind it look back no further than the window.
void BlockManager::leave_windows(Sequence& sequence) {
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const std::uint32_t size = pools_[window]->config.window_size.value_or(kNone);
        if (sequence.computed > size) {
            leave_window(sequence, window, (sequence.computed - size) / config_.tokens_per_block);
        }
    }
}

// Blocks before `left` will not be read again by this sequence: they stay findable if they can, and are let go.
void BlockManager::leave_window(Sequence& sequence, std::size_t window, std::uint32_t left) {
    HeldBlocks& held = sequence.windows[window];
    if (left <= held.left) {
        return;
    }
    store_blocks(sequence, window, std::min(left * config_.tokens_per_block, sequence.storable()));
    for (std::uint32_t position = held.left; position < left; ++position) {
        if (position < held.shared.size()) {
            const Block& record = pools_[window]->store[held.shared[position]];
            if (record.undelivered || record.in_flight(kPrimary)) {
                sequence.doubtful_from = std::min(sequence.doubtful_from, position);
            }
            pools_[window]->let_go(held.shared[position]);
            held.shared[position] = kNone;
            continue;
        }
        for (auto& tail : held.tails) {
            BlockIndex& block = tail[position - held.shared.size()];
            pools_[window]->let_go(block);
            block = kNone;
        }
    }
    held.left = left;
}

void BlockManager::rewind_kv_cache(RequestId id, std::uint32_t count) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = sequences_.at(id);
    const std::string who = "request " + std::to_string(id) + ", count: ";
    if (count > sequence.length - sequence.prompt_length()) {
        throw std::invalid_argument(who + std::to_string(count) + " is more than the " +
                                    std::to_string(sequence.length - sequence.prompt_length()) +
                                    " tokens grown since the prompt");
    }
    const std::uint32_t length = sequence.length - count;
    const std::uint32_t computed = std::min(sequence.computed, length);
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const std::uint32_t size = pools_[window]->config.window_size.value_or(kNone);
        const std::uint32_t may_have_left = computed > size ? (computed - size) / config_.tokens_per_block : 0;
        if (sequence.windows[window].left > may_have_left) {
            throw std::invalid_argument(who + "rewinding by " + std::to_string(count) + " needs block " +
                                        std::to_string(may_have_left) + ", which has left the window of " +
                                        std::to_string(size));
        }
    }
    const std::size_t blocks = ceil_div(length, config_.tokens_per_block);
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        HeldBlocks& held = sequence.windows[window];
        held.sure = std::min(held.sure, static_cast<std::uint32_t>(blocks));
        for (std::uint32_t beam = 0; beam < sequence.beam_width(); ++beam) {
            std::vector<BlockIndex>& list = held.tails.empty() ? held.shared : held.tails[beam];
            const std::size_t keep = blocks - (held.tails.empty() ? 0 : held.shared.size());
            for (; list.size() > keep; list.pop_back()) {
                pools_[window]->let_go(list.back());
            }
        }
    }
    sequence.length = length;
    sequence.computed = computed;
    if (sequence.known() > length) {
        sequence.grown_tokens.resize(length - sequence.prompt_length());
    }
}

}  // namespace kvfix
