#include "core/admit.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/chunk.h"
#include "core/hold.h"
#include "core/pause_point.h"
#include "core/retain.h"
#include "core/transfer.h"

namespace kvfix::admit {
namespace {

void check_requests(const State& state, std::span<const RequestPtr> requests) {
    std::vector<RequestId> ids;
    const auto who = [](const RequestPtr& request) { return "request " + std::to_string(request->id); };
    for (const RequestPtr& request : requests) {
        if (request->beam_width > state.config.beam_width_max) {
            throw std::invalid_argument(who(request) + ", beam_width: " + std::to_string(request->beam_width) +
                                        " is over the manager's max_beam_width of " +
                                        std::to_string(state.config.beam_width_max));
        }
        if (state.sequences.find(request->id) != nullptr) {
            throw std::invalid_argument(who(request) + ", request_id: a sequence of this id is alive; remove it first");
        }
        ids.push_back(request->id);
    }
    std::ranges::sort(ids);
    if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end()) {
        throw std::invalid_argument("request " + std::to_string(*twice) + ", request_id: twice in one batch");
    }
}

// One batch on its way into the state: the plan, and the sequences that it begins.
class Batch {
  public:
    Batch(State& state, const AdmissionPlan& plan) : state_(state), plan_(plan) {}

    std::vector<Admission> apply(std::span<const RequestPtr> requests) {
        std::vector<Sequence*> begun;
        begun.reserve(requests.size());
        for (std::size_t i = 0; i < requests.size(); ++i) {
            begun.push_back(&state_.sequences.add(requests[i], state_.windows.size()));
            claim_all(plan_.requests[i], *begun.back());
        }
        KVFIX_PAUSE("admit.claimed");
        std::vector<Admission> out(requests.size());
        for (std::size_t i = 0; i < requests.size(); ++i) {
            out[i] = place_all(plan_.requests[i], *begun[i]);
        }
        return out;
    }

  private:
    void claim_all(const RequestPlan& plan, Sequence& sequence);
    void claim_window(const RequestPlan& plan, Sequence& sequence, Window& window);
    Admission place_all(const RequestPlan& plan, Sequence& sequence);
    void place_window(const RequestPlan& plan, Sequence& sequence, Window& window);
    void copy_partial(const RequestPlan& plan, HeldBlocks& held, Window& window);
    BlockIndex allocate(const Request& request, Window& window, std::uint32_t position);
    RequestStats count(const RequestPlan& plan, const Admission& admission);

    // The block that has the bytes of a copy's source, once all takeovers of earlier requests have been applied.
    BlockIndex source_now(const WindowMatch& match) const {
        return match.taken_by == kNone ? match.source : taken_[match.taken_by];
    }

    State& state_;
    const AdmissionPlan& plan_;
    std::vector<BlockIndex>
        taken_;  // [match]: the new block of a takeover, once it is applied; empty where there is none
};

// Takes every block that the plan counts on out of eviction's reach, for the whole batch before any of it allocates.
void Batch::claim_all(const RequestPlan& plan, Sequence& sequence) {
    sequence.length = plan.length(plan_.chunk_tokens);
    sequence.computed = plan.reuse;
    sequence.claimed = plan.full;
    for (Window& window : state_.windows) {
        claim_window(plan, sequence, window);
    }
}

void Batch::claim_window(const RequestPlan& plan, Sequence& sequence, Window& window) {
    const Request& request = *plan.request;
    HeldBlocks& held = sequence.windows[window.index];
    const std::uint32_t tokens_per_block = state_.tokens_per_block();
    const WindowMatch& match = plan_.match(plan, window.index);
    held.left = match.hold_begin;
    held.shared.reserve(ceil_div(request.num_tokens(), tokens_per_block) + 1);
    held.shared.assign(match.hold_begin, kNone);
    constexpr std::size_t kAhead = 8;
    const std::span<const BlockIndex> claims = plan_.held_claims(plan, window.index);
    for (std::size_t i = 0; i < claims.size(); ++i) {
        const BlockIndex block = claims[i];
        if (i + kAhead < claims.size()) {
            hold::prefetch(window, claims[i + kAhead]);
        }
        hold::claim(window, block);
        window.blocks[block].asked_again = true;
        if (request.retention) {
            const auto token = static_cast<std::uint32_t>(held.shared.size()) * tokens_per_block;
            if (const RetentionRange* range = request.retention->at(token)) {
                retain::set(state_, window, block, range->priority, range->duration_ms);
            }
        }
        held.append(0, block);
    }
    if (state_.config.block_reuse && window.tree.by_prefix()) {
        StoreCursor& cursor = sequence.cursors[window.index];
        cursor.position = plan.full;
        cursor.prefix =
            plan.full == 0 ? window.tree.beginning(request.identity) : window.tree.behind(held.shared.back());
    }
    if (match.way == PartialWay::take_over) {
        const auto [priority, duration_ms] = request.block_retention(plan.full * tokens_per_block);
        held.append(0, hold::take_over(state_, window, match.source, priority, duration_ms));
        taken_.resize(plan_.matches.size(), kNone);
        taken_[plan.match_begin + window.index] = held.shared.back();
    } else if (match.way == PartialWay::copy) {
        transfer::lock_source(state_, window, source_now(match), plan.partial_copies(tokens_per_block));
    }
}

Admission Batch::place_all(const RequestPlan& plan, Sequence& sequence) {
    Admission out{.request_id = plan.request->id, .tokens_reused = plan.reuse, .tokens_new = plan.tokens_new()};
    const std::uint64_t onboarded_before = state_.current.blocks_onboarded;
    for (Window& window : state_.windows) {
        const WindowMatch& match = plan_.match(plan, window.index);
        place_window(plan, sequence, window);
        transfer::wait_for_blocks(state_, window, sequence, plan.full + 1);
        out.blocks_reused += plan.full + (match.way == PartialWay::none ? 0 : 1);
        out.blocks_new += blocks_new(plan_, plan, match, state_.tokens_per_block());
    }
    out.blocks_onboarded = state_.current.blocks_onboarded - onboarded_before;
    sequence.stats = count(plan, out);
    return out;
}

void Batch::place_window(const RequestPlan& plan, Sequence& sequence, Window& window) {
    if (window.has_host()) {
        for (const BlockIndex block : plan_.held_claims(plan, window.index)) {
            if (std::as_const(window.blocks)[block].host_only()) {
                transfer::onboard(state_, window, block);
            }
        }
    }
    if (plan_.match(plan, window.index).way == PartialWay::copy) {
        copy_partial(plan, sequence.windows[window.index], window);
    }
    chunk::reserve(state_, window, sequence, sequence.length);
    if (sequence.length < sequence.prompt_length()) {
        chunk::keep(window, sequence, chunk::blocks_at_most(window, *plan.request, plan_.chunk_tokens));
    }
}

void Batch::copy_partial(const RequestPlan& plan, HeldBlocks& held, Window& window) {
    const std::uint32_t copies = plan.partial_copies(state_.tokens_per_block());
    const BlockIndex source = source_now(plan_.match(plan, window.index));
    if (copies > 1) {
        held.tails.resize(copies);
    }
    for (std::uint32_t beam = 0; beam < copies; ++beam) {
        const BlockIndex block = allocate(*plan.request, window, plan.full);
        transfer::copy_prefix(state_, window, source, block, plan.reuse % state_.tokens_per_block());
        held.append(beam, block);
    }
}

BlockIndex Batch::allocate(const Request& request, Window& window, std::uint32_t position) {
    const auto [priority, duration_ms] = request.block_retention(position * state_.tokens_per_block());
    return hold::allocate(state_, window, priority, duration_ms);
}

RequestStats Batch::count(const RequestPlan& plan, const Admission& admission) {
    const std::uint64_t windows = state_.windows.size();
    const std::uint64_t full_prompt = plan.request->num_tokens() / state_.tokens_per_block();
    const RequestStats stats{.tokens_reused = admission.tokens_reused,
                             .tokens_new = admission.tokens_new,
                             .blocks_reused = admission.blocks_reused,
                             .blocks_onboarded = admission.blocks_onboarded,
                             .blocks_new = admission.blocks_new,
                             .blocks_missed = (full_prompt - plan.full) * windows,
                             .blocks_grown = 0};
    CacheCounters& counters = state_.current;
    ++counters.requests;
    counters.tokens_reused += stats.tokens_reused;
    counters.tokens_new += stats.tokens_new;
    counters.blocks_reused += stats.blocks_reused;
    counters.blocks_reused_partial += admission.blocks_reused - plan.full * windows;
    counters.blocks_new += stats.blocks_new;
    counters.blocks_missed += stats.blocks_missed;
    return stats;
}

}  // namespace

BatchAdmission batch(State& state, AdmissionPlanner& planner, std::span<const RequestPtr> requests,
                     std::optional<std::uint64_t> tokens_new_max, std::uint32_t chunk_tokens) {
    chunk::check(chunk_tokens);
    check_requests(state, requests);
    const AdmissionPlan* plan = &planner.match(state, requests, chunk_tokens);
    std::size_t count = planner.fit(state, tokens_new_max);
    if (count == 0 &&
        requests.size() > 1) {  // beside others the first may lose what it was promised: alone it does not
        plan = &planner.match(state, requests.first(1), chunk_tokens);
        count = planner.fit(state, tokens_new_max);
    }
    BatchAdmission out{.admitted = Batch(state, *plan).apply(requests.first(count)), .deferred = {}};
    for (const RequestPtr& request : requests.subspan(count)) {
        out.deferred.push_back(request->id);
    }
    return out;
}

PrefixReuse analyze(const State& state, AdmissionPlanner& planner, const RequestPtr& request,
                    std::uint32_t chunk_tokens) {
    chunk::check(chunk_tokens);
    const AdmissionPlan& plan = planner.match(state, {&request, 1}, chunk_tokens);
    planner.try_fit(state, 1);  // a request that does not fit at all may still ask what it would find
    const RequestPlan& alone = plan.requests.front();
    PrefixReuse reuse{.tokens = alone.reuse};
    for (const Window& window : state.windows) {
        const auto count = [&](BlockIndex block) {
            ++(window.blocks[block].has(kPrimary) ? reuse.blocks_primary : reuse.blocks_host);
        };
        for (const BlockIndex block : plan.held_claims(alone, window.index)) {
            if (block != kNone) {
                count(block);
            }
        }
        if (const WindowMatch& match = plan.match(alone, window.index); match.way != PartialWay::none) {
            count(match.source);
        }
    }
    return reuse;
}

}  // namespace kvfix::admit
