// Whether what a plan wants fits the budget and the windows, and which partial reuse is given up where it does not.
#include <algorithm>

#include "core/admission_planner.h"
#include "core/chunk.h"
#include "core/errors.h"

namespace kvfix {

std::uint64_t blocks_new(const AdmissionPlan& plan, const RequestPlan& request, const WindowMatch& match,
                         std::uint32_t tokens_per_block) {
    const std::uint32_t length = request.length(plan.chunk_tokens);
    const std::uint64_t blocks = blocks_over(*request.request, length, tokens_per_block) - request.full;
    return blocks - (match.way == PartialWay::none ? 0 : request.partial_copies(tokens_per_block));
}

std::size_t AdmissionPlanner::within_budget(std::optional<std::uint64_t> tokens_new_max) const {
    std::uint64_t tokens_left = tokens_new_max.value_or(~std::uint64_t{0});
    std::size_t count = 0;
    const auto tokens_now = [&](const RequestPlan& plan) { return plan.length(plan_.chunk_tokens) - plan.reuse; };
    while (count < plan_.requests.size() && tokens_now(plan_.requests[count]) <= tokens_left) {
        tokens_left -= tokens_now(plan_.requests[count++]);
    }
    return count;
}

std::size_t AdmissionPlanner::fit(const State& state, std::optional<std::uint64_t> tokens_new_max) {
    if (!try_fit(state, within_budget(tokens_new_max))) {
        const auto is_short = [](const Room& room) { return room.needed > room.free; };
        const auto room = std::ranges::find_if(rooms_, is_short);
        const Window& window = state.windows[static_cast<std::size_t>(room - rooms_.begin())];
        throw OutOfBlocks(room->needed, room->free, window.config.window_size);
    }
    return within_budget(tokens_new_max);  // a request that reuses less computes more
}

// A copied source keeps a slot that could have been evicted: one more than the request would need without it.
bool AdmissionPlanner::try_fit(const State& state, std::size_t count) {
    if (!may_be_short(state, count)) {
        return true;
    }
    begin_marking(state);
    rooms_.clear();
    for (const Window& window : state.windows) {
        rooms_.push_back(room_without_copies(window, count));
    }
    if (std::ranges::any_of(rooms_, [](const Room& room) { return room.needed > room.free; })) {
        return false;
    }
    for (RequestPlan& plan : std::span(plan_.requests).first(count)) {
        if (plan.reuse % state.tokens_per_block() != 0) {
            keep_copies(state, plan);
        }
    }
    return true;
}

std::vector<std::uint64_t> AdmissionPlanner::slots_taken(const State& state, std::size_t count) {
    begin_marking(state);
    std::vector<std::uint64_t> out;
    for (const Window& window : state.windows) {
        out.push_back(room_without_copies(window, count).taken);
        for (const RequestPlan& plan : std::span(plan_.requests).first(count)) {
            if (const WindowMatch& match = match_of(plan, window.index); locks_evictable(window, match)) {
                mark(window.index, match.source) = serial_;
                ++out.back();
            }
        }
    }
    return out;
}

// Each claim or source costs one slot at most, evictable before or needed now: most batches need no closer look.
bool AdmissionPlanner::may_be_short(const State& state, std::size_t count) const {
    std::uint64_t most = 0;
    for (const RequestPlan& plan : std::span(plan_.requests).first(count)) {
        most += std::uint64_t{plan.request->num_tokens() / state.tokens_per_block()} + plan.request->beam_width + 1;
    }
    return std::ranges::any_of(state.windows, [most](const Window& window) { return most > window.allocatable(); });
}

// The blocks that all claims and takeovers take, and those that copies take beyond their sources. Served requests are
// marked.
AdmissionPlanner::Room AdmissionPlanner::room_without_copies(const Window& window, std::size_t count) {
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    Room room{.needed = 0, .free = window.there()};
    const auto take = [&](BlockIndex block) {
        if (marked(window.index, block)) {
            return false;
        }
        mark(window.index, block) = serial_;
        room.free -= window.evictable(block) ? 1 : 0;
        return true;
    };
    for (const RequestPlan& plan : std::span(plan_.requests).first(count)) {
        for (const BlockIndex block : plan_.held_claims(plan, window.index)) {
            room.needed += take(block) && window.blocks[block].host_only() ? 1 : 0;
        }
        const std::uint64_t own = blocks_over(*plan.request, plan.request->num_tokens(), tokens_per_block) - plan.full;
        room.needed += std::min(own, chunk::blocks_at_most(window, *plan.request, plan_.chunk_tokens));
        room.needed -= plan_.match(plan, window.index).way == PartialWay::take_over ? 1 : 0;
    }
    for (const RequestPlan& plan : std::span(plan_.requests).first(count)) {
        if (const WindowMatch& matched = plan_.match(plan, window.index); matched.way == PartialWay::take_over) {
            take(matched.source);
        }
    }
    room.taken = room.needed + (window.there() - room.free);
    room.needed +=
        window.slots_kept - std::min(window.slots_kept, room.free);  // the claims may take all that is not kept
    room.free -= std::min(window.slots_kept, room.free);
    return room;
}

void AdmissionPlanner::keep_copies(const State& state, RequestPlan& plan) {
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        if (match.taken_by != kNone && plan_.matches[match.taken_by].way != PartialWay::take_over) {
            match.taken_by = kNone;  // its taker has given up
        }
        const Room& room = rooms_[window.index];
        if (room.needed == room.free && locks_evictable(window, match)) {
            give_up_partial(state, plan);
            return;
        }
    }
    for (const Window& window : state.windows) {
        const WindowMatch& match = match_of(plan, window.index);
        if (locks_evictable(window, match)) {
            ++rooms_[window.index].needed;
            mark(window.index, match.source) = serial_;
        }
    }
}

bool AdmissionPlanner::locks_evictable(const Window& window, const WindowMatch& match) const {
    return match.way == PartialWay::copy && window.evictable(match.source) && !marked(window.index, match.source);
}

// A request that gives up a takeover leaves its source to be evicted, and needs a new block instead: nothing to count.
void AdmissionPlanner::give_up_partial(const State& state, RequestPlan& plan) {
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        if (match.way == PartialWay::take_over) {
            mark(window.index, match.source) = 0;
        }
        match.way = PartialWay::none;
        match.taken_by = kNone;
    }
    set_reuse(state, plan, plan.full * state.tokens_per_block());
}

}  // namespace kvfix
