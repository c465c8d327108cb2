// Whether what a plan wants fits the budget and the pools, and which partial reuse is given up where it does not.
#include <algorithm>

#include "core/admission_plan.h"
#include "core/errors.h"

namespace kvfix {

std::size_t AdmissionPlan::within_budget(std::optional<std::uint64_t> tokens_new_max) const {
    std::uint64_t tokens_left = tokens_new_max.value_or(~std::uint64_t{0});
    std::size_t count = 0;
    while (count < requests_.size() && requests_[count].tokens_new() <= tokens_left) {
        tokens_left -= requests_[count++].tokens_new();
    }
    return count;
}

std::uint64_t AdmissionPlan::blocks_new(const RequestPlan& plan, const WindowMatch& match,
                                        std::uint32_t tokens_per_block) {
    const std::uint32_t full_prompt = plan.request->num_tokens() / tokens_per_block;
    const bool incomplete = plan.request->num_tokens() % tokens_per_block != 0;
    const std::uint64_t blocks = std::uint64_t{full_prompt - plan.full} + (incomplete ? plan.request->beam_width : 0);
    return blocks - (match.way == PartialWay::none ? 0 : plan.partial_copies(tokens_per_block));
}

std::size_t AdmissionPlan::fit(Pools pools, std::optional<std::uint64_t> tokens_new_max) {
    if (!try_fit(pools, within_budget(tokens_new_max))) {
        const auto is_short = [](const Room& room) { return room.needed > room.free; };
        const auto room = std::ranges::find_if(rooms_, is_short);
        const WindowPool& pool = *pools[static_cast<std::size_t>(room - rooms_.begin())];
        throw OutOfBlocks(room->needed, room->free, pool.config.window_size);
    }
    return within_budget(tokens_new_max);  // who reuses less computes more
}

// A copied source keeps a slot that could have been evicted: one more than the request would need without it.
bool AdmissionPlan::try_fit(Pools pools, std::size_t count) {
    if (!may_be_short(pools, count)) {
        return true;
    }
    begin_marking(pools);
    rooms_.clear();
    for (std::size_t window = 0; window < pools.size(); ++window) {
        rooms_.push_back(room_without_copies(*pools[window], window, count));
    }
    if (std::ranges::any_of(rooms_, [](const Room& room) { return room.needed > room.free; })) {
        return false;
    }
    for (RequestPlan& plan : std::span(requests_).first(count)) {
        if (plan.reuse % config_->tokens_per_block != 0) {
            keep_copies(pools, plan);
        }
    }
    return true;
}

// Each claim or source costs one slot at most, evictable before or needed now: most batches need no closer look.
bool AdmissionPlan::may_be_short(Pools pools, std::size_t count) const {
    std::uint64_t most = 0;
    for (const RequestPlan& plan : std::span(requests_).first(count)) {
        most += std::uint64_t{plan.request->num_tokens() / config_->tokens_per_block} + plan.request->beam_width + 1;
    }
    return std::ranges::any_of(pools, [most](const auto& pool) { return most > pool->allocatable(); });
}

// What all claims and takeovers take, and what copies take beyond their sources. What is served is marked.
AdmissionPlan::Room AdmissionPlan::room_without_copies(WindowPool& pool, std::size_t window, std::size_t count) {
    Room room{.needed = 0, .free = pool.allocatable()};
    const auto take = [&](BlockIndex block) {
        if (pool.store.mark(block) == serial_) {
            return false;
        }
        pool.store.mark(block) = serial_;
        room.free -= pool.evictable(block) ? 1 : 0;
        return true;
    };
    for (const RequestPlan& plan : std::span(requests_).first(count)) {
        for (const BlockIndex block : held_claims(plan, window)) {
            room.needed += take(block) && pool.store[block].host_only() ? 1 : 0;
        }
        const WindowMatch& matched = match(plan, window);
        room.needed += blocks_new(plan, matched, config_->tokens_per_block);
        room.needed += matched.way == PartialWay::copy ? plan.partial_copies(config_->tokens_per_block) : 0;
    }
    for (const RequestPlan& plan : std::span(requests_).first(count)) {
        if (const WindowMatch& matched = match(plan, window); matched.way == PartialWay::take_over) {
            take(matched.source);
        }
    }
    return room;
}

void AdmissionPlan::keep_copies(Pools pools, RequestPlan& plan) {
    for (std::size_t window = 0; window < pools.size(); ++window) {
        WindowMatch& match = matches_[plan.match_begin + window];
        if (match.taken_by != kNone && matches_[match.taken_by].way != PartialWay::take_over) {
            match.taken_by = kNone;  // its taker has given up
        }
        if (rooms_[window].needed == rooms_[window].free && locks_evictable(*pools[window], match)) {
            give_up_partial(pools, plan);
            return;
        }
    }
    for (std::size_t window = 0; window < pools.size(); ++window) {
        const WindowMatch& match = matches_[plan.match_begin + window];
        if (locks_evictable(*pools[window], match)) {
            ++rooms_[window].needed;
            pools[window]->store.mark(match.source) = serial_;
        }
    }
}

bool AdmissionPlan::locks_evictable(const WindowPool& pool, const WindowMatch& match) const {
    return match.way == PartialWay::copy && pool.evictable(match.source) && pool.store.mark(match.source) != serial_;
}

// A request that gives up a takeover leaves its source to be evicted, and needs a new block instead: nothing to count.
void AdmissionPlan::give_up_partial(Pools pools, RequestPlan& plan) {
    for (std::size_t window = 0; window < pools.size(); ++window) {
        WindowMatch& match = matches_[plan.match_begin + window];
        if (match.way == PartialWay::take_over) {
            pools[window]->store.mark(match.source) = 0;
        }
        match.way = PartialWay::none;
        match.taken_by = kNone;
    }
    set_reuse(pools, plan, plan.full * config_->tokens_per_block);
}

}  // namespace kvfix
