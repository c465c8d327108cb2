#include "core/preempt.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/errors.h"
#include "core/evict.h"
#include "core/hold.h"
#include "core/keep.h"
#include "core/pause_point.h"
#include "core/transfer.h"

namespace kvfix::preempt {
namespace {

[[noreturn]] void refuse(const Sequence& sequence, const std::string& why) {
    throw std::invalid_argument("request " + std::to_string(sequence.id()) + why);
}

// Visits every block that the sequence holds in the window, with the number of tokens that may be written in it.
template <class Visit>
void for_each_block(const State& state, const Sequence& sequence, const Window& window, Visit&& visit) {
    const HeldBlocks& held = sequence.windows[window.index];
    const std::uint32_t tokens_per_block = state.tokens_per_block();
    const auto beams = static_cast<std::uint32_t>(std::max<std::size_t>(held.tails.size(), 1));
    for (auto position = held.left; position < held.size(); ++position) {
        const std::uint32_t tokens = std::min(tokens_per_block, sequence.length - position * tokens_per_block);
        for (std::uint32_t beam = 0; beam < (position < held.shared.size() ? 1 : beams); ++beam) {
            visit(held.at(beam, position), tokens);
        }
    }
}

void check_delivered(const Sequence& sequence, const Window& window, BlockIndex block, const char* when) {
    if (window.blocks[block].undelivered) {
        refuse(sequence, ": block " + std::to_string(number(id_of(window, block))) + " was lost " + when +
                             "; remove the request and admit it again");
    }
}

// Slots that are kept in primary for the rest of a prompt have no place in host, and could not be promised again later.
void check_reserved(const Sequence& sequence) {
    if (sequence.length < sequence.prompt_length()) {
        refuse(sequence, ": " + std::to_string(sequence.length) + " of its prompt's " +
                             std::to_string(sequence.prompt_length()) +
                             " tokens are reserved; suspend it behind its last chunk, or remove it and admit it again");
    }
}

void check_can_leave(const State& state, const Sequence& sequence, const Window& window) {
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) {
        if (!window.blocks[block].settled(kPrimary)) {
            throw BlockInFlight(id_of(window, block));
        }
        check_delivered(sequence, window, block, "by a transfer that failed");
    });
}

// Once a host copy that could be evicted is kept, one fewer can be.
void check_host_room(const State& state, const Sequence& sequence, const Window& window) {
    std::uint64_t needed = 0;
    std::uint64_t free = window.blocks.slots_free(kHost);
    free += window.evictable_in_host();
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) {
        if (!window.blocks[block].has(kHost)) {
            ++needed;
        } else if (window.host_redundant_queue.contains(block)) {
            --free;
        }
    });
    if (needed > free) {
        throw OutOfBlocks(needed, free, window.config.window_size, Tier::host);
    }
}

void leave_window(State& state, const Sequence& sequence, Window& window) {
    std::vector<BlockIndex> without_copy;
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t tokens) {
        Block& record = window.blocks[block];
        if (!record.in_tree) {
            record.num_tokens = static_cast<std::uint16_t>(tokens);
        }
        if (record.has(kHost)) {
            keep::begin(state, window, block, kHost, sequence.id());
        } else {
            without_copy.push_back(block);
        }
    });
    KVFIX_PAUSE("suspend.kept");
    for (const BlockIndex block : without_copy) {
        transfer::copy_to_host(state, window, block, evict::take_host_slot(state, window));
        keep::begin(state, window, block, kHost, sequence.id());
    }
}

struct Return {
    std::uint64_t onboarded = 0;
    std::uint64_t cached = 0;  // still in primary, where they could be evicted
};

Return to_bring_back(const State& state, const Sequence& sequence, const Window& window) {
    Return out;
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) {
        out.onboarded += window.blocks[block].has(kPrimary) ? 0 : 1;
        out.cached += window.evictable(block) ? 1 : 0;
    });
    return out;
}

void check_can_return(const State& state, const Sequence& sequence, const Window& window) {
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) {
        check_delivered(sequence, window, block, "while the request was suspended");
        const Block& record = window.blocks[block];
        // If something else kept a private block in primary, the sequence will write to it there, and the copy would
        // miss that.
        const bool copied = !record.in_tree && record.in_flight(kHost);
        if (!record.usable() || copied) {
            throw BlockInFlight(id_of(window, block));
        }
    });
    const Return back = to_bring_back(state, sequence, window);
    if (back.onboarded + back.cached > window.allocatable()) {
        throw OutOfBlocks(back.onboarded + back.cached, window.allocatable(), window.config.window_size);
    }
}

void return_to(State& state, const Sequence& sequence, Window& window) {
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) { hold::claim(window, block); });
    for_each_block(state, sequence, window, [&](BlockIndex block, std::uint32_t) {
        if (window.blocks[block].host_only()) {
            transfer::onboard(state, window, block);
        }
    });
    for_each_block(state, sequence, window,
                   [&](BlockIndex block, std::uint32_t) { keep::end(state, window, block, sequence.id()); });
    transfer::wait_for_blocks(state, window, sequence, sequence.windows[window.index].size());
}

Sequence& suspended(State& state, RequestId id) {
    Sequence& sequence = state.sequences.at_any(id);
    if (!sequence.suspended) {
        refuse(sequence, " is not suspended");
    }
    return sequence;
}

}  // namespace

std::uint64_t suspend(State& state, RequestId id) {
    Sequence& sequence = state.sequences.at(id);
    check_reserved(sequence);
    for (const Window& window : state.windows) {
        check_can_leave(state, sequence, window);
    }
    for (const Window& window : state.windows) {
        check_host_room(state, sequence, window);
    }
    const std::uint64_t offloaded_before = state.current.blocks_offloaded;
    for (Window& window : state.windows) {
        leave_window(state, sequence, window);
        sequence.windows[window.index].sure = 0;  // a copy may be lost, and what returns is in flight
    }
    hold::let_go_all(state, sequence);
    sequence.suspended = true;
    ++state.sequences_suspended;
    return state.current.blocks_offloaded - offloaded_before;
}

std::uint64_t resume(State& state, RequestId id) {
    Sequence& sequence = suspended(state, id);
    for (const Window& window : state.windows) {
        check_can_return(state, sequence, window);
    }
    KVFIX_PAUSE("resume.checked");
    const std::uint64_t onboarded_before = state.current.blocks_onboarded;
    for (Window& window : state.windows) {
        return_to(state, sequence, window);
    }
    sequence.suspended = false;
    --state.sequences_suspended;
    return state.current.blocks_onboarded - onboarded_before;
}

std::vector<std::uint64_t> blocks_to_resume(const State& state, RequestId id) {
    const Sequence& sequence = state.sequences.at_any(id);
    if (!sequence.suspended) {
        refuse(sequence, " is not suspended");
    }
    std::vector<std::uint64_t> out;
    for (const Window& window : state.windows) {
        const Return back = to_bring_back(state, sequence, window);
        out.push_back(back.onboarded + back.cached);
    }
    return out;
}

}  // namespace kvfix::preempt
