// Serves each partial reuse of a batch: one request may take the source over, the others copy.
#include <algorithm>

#include "core/admission_planner.h"

namespace kvfix {

void AdmissionPlanner::begin_marking(const State& state) {
    if (++serial_ == 0) {  // the counter went round: marks of four billion passes ago must not look current
        serial_ = 1;
        marks_.clear();
    }
    marks_.resize(state.windows.size());
    for (const Window& window : state.windows) {
        marks_[window.index].resize(window.blocks.size());
    }
}

void AdmissionPlanner::settle_partials(const State& state) {
    const auto partial = [&](const RequestPlan& plan) { return plan.reuse % state.tokens_per_block() != 0; };
    if (std::ranges::none_of(plan_.requests, partial)) {
        return;
    }
    begin_marking(state);
    takers_.resize(state.windows.size());
    for (const Window& window : state.windows) {
        takers_[window.index].resize(window.blocks.size(), kNone);
        for (const RequestPlan& plan : plan_.requests) {
            for (const BlockIndex block : plan_.held_claims(plan, window.index)) {
                mark(window.index, block) = serial_;
            }
        }
    }
    for (RequestPlan& plan : plan_.requests) {
        if (partial(plan)) {
            settle_partial(state, plan);
        }
    }
}

void AdmissionPlanner::settle_partial(const State& state, RequestPlan& plan) {
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        match.way = way_of(state, window, plan, match.source);
        if (match.way == PartialWay::none) {  // a reuse that one window cannot serve, none serves
            set_reuse(state, plan, plan.full * state.tokens_per_block());
            for (std::size_t before = 0; before < window.index; ++before) {
                match_of(plan, before).way = PartialWay::none;
            }
            return;
        }
    }
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        if (match.way == PartialWay::take_over) {
            takers_[window.index][number(match.source)] = plan.match_begin + window.index;
        } else if (marked(window.index, match.source)) {
            match.taken_by = taker_of(match.source, window.index);
        }
        mark(window.index, match.source) = serial_;
    }
}

// Entries of earlier plans stay: one counts if this plan's match says the same.
std::uint32_t AdmissionPlanner::taker_of(BlockIndex source, std::size_t window) const {
    const std::uint32_t taker = takers_[window][number(source)];
    const auto& matches = plan_.matches;
    const bool holds = taker < matches.size() && taker % takers_.size() == window && matches[taker].source == source &&
                       matches[taker].way == PartialWay::take_over;
    return holds ? taker : kNone;
}

PartialWay AdmissionPlanner::way_of(const State& state, const Window& window, const RequestPlan& plan,
                                    BlockIndex source) const {
    const Block& block = window.blocks[source];
    const bool free_leaf = block.has(kPrimary) && !block.held_primary() && !window.tree.has_children(source);
    if (free_leaf && !marked(window.index, source) && plan.partial_copies(state.tokens_per_block()) == 1) {
        return PartialWay::take_over;
    }
    return state.config.copy_on_partial_reuse ? PartialWay::copy : PartialWay::none;
}

}  // namespace kvfix
