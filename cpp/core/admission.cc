// Batch admission, phase two: the plan holds, so nothing here can fail.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/block_manager.h"
#include "core/pause_point.h"

namespace kvfix {

BatchAdmission BlockManager::add_sequence_batch(std::span<const RequestPtr> requests,
                                                std::optional<std::uint64_t> tokens_new_max) {
    const ManagerGuard guard(mutex_);
    return admit_batch(requests, tokens_new_max);
}

Admission BlockManager::add_sequence(const RequestPtr& request) {
    const ManagerGuard guard(mutex_);
    return admit_batch({&request, 1}, std::nullopt).admitted.front();
}

PrefixReuse BlockManager::analyze_prefix_reuse(const RequestPtr& request) {
    const ManagerGuard guard(mutex_);
    plan_.make(pools_, config_, {&request, 1});
    plan_.try_fit(pools_, 1);  // a request that does not fit at all may be told what it would find
    const RequestPlan& plan = plan_.requests().front();
    PrefixReuse reuse{.tokens = plan.reuse};
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const auto count = [&](BlockIndex block) {
            ++(pools_[window]->store[block].has(kPrimary) ? reuse.blocks_primary : reuse.blocks_host);
        };
        std::ranges::for_each(plan_.claims(plan, window), count);
        if (const WindowMatch& match = plan_.match(plan, window); match.way != PartialWay::none) {
            count(match.source);
        }
    }
    return reuse;
}

void BlockManager::check_requests(std::span<const RequestPtr> requests) const {
    std::vector<RequestId> ids;
    for (const RequestPtr& request : requests) {
        const std::string who = "request " + std::to_string(request->id);
        if (request->beam_width > config_.beam_width_max) {
            throw std::invalid_argument(who + ", beam_width: " + std::to_string(request->beam_width) +
                                        " is over the manager's max_beam_width of " +
                                        std::to_string(config_.beam_width_max));
        }
        if (sequences_.find(request->id) != nullptr) {
            throw std::invalid_argument(who + ", request_id: a sequence of this id is alive; remove it first");
        }
        ids.push_back(request->id);
    }
    std::ranges::sort(ids);
    if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end()) {
        throw std::invalid_argument("request " + std::to_string(*twice) + ", request_id: twice in one batch");
    }
}

BatchAdmission BlockManager::admit_batch(std::span<const RequestPtr> requests,
                                         std::optional<std::uint64_t> tokens_new_max) {
    check_requests(requests);
    plan_.make(pools_, config_, requests);
    std::size_t count = plan_.fit(pools_, tokens_new_max);
    if (count == 0 &&
        requests.size() > 1) {  // beside others the first may lose what it was promised: alone it does not
        plan_.make(pools_, config_, requests.first(1));
        count = plan_.fit(pools_, tokens_new_max);
    }

    BatchAdmission out;
    out.admitted.resize(count);
    std::vector<Sequence*> begun(count);
    for (std::size_t i = 0; i < count; ++i) {
        begun[i] = &sequences_.add(requests[i], pools_.size());
        claim_all(plan_.requests()[i], *begun[i]);
    }
    KVFIX_PAUSE("admit.claimed");
    for (std::size_t i = 0; i < count; ++i) {
        const RequestPlan& plan = plan_.requests()[i];
        Admission& admission = out.admitted[i];
        admission = {.request_id = plan.request->id, .tokens_reused = plan.reuse, .tokens_new = plan.tokens_new()};
        for (std::size_t window = 0; window < pools_.size(); ++window) {
            fill_window(plan, *begun[i], window, admission);
        }
        count_admission(plan, admission, begun[i]->stats);
    }
    for (const RequestPtr& request : requests.subspan(count)) {
        out.deferred.push_back(request->id);
    }
    return out;
}

// Takes every block that the plan counts on out of eviction's reach, for the whole batch before any of it allocates.
void BlockManager::claim_all(const RequestPlan& plan, Sequence& sequence) {
    const Request& request = *plan.request;
    sequence.length = request.num_tokens();
    sequence.computed = plan.reuse;
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        WindowPool& pool = *pools_[window];
        const WindowMatch& match = plan_.match(plan, window);
        HeldBlocks& held = sequence.windows[window];
        held.left = match.hold_begin;
        held.shared.reserve(ceil_div(request.num_tokens(), config_.tokens_per_block) + 1);
        held.shared.assign(match.hold_begin, kNone);
        for (const BlockIndex block : plan_.held_claims(plan, window)) {
            pool.claim(block);
            if (request.retention) {
                const auto token = static_cast<std::uint32_t>(held.shared.size()) * config_.tokens_per_block;
                if (const RetentionRange* range = request.retention->at(token)) {
                    pool.set_retention(block, range->priority, range->duration_ms);
                }
            }
            held.shared.push_back(block);
        }
        if (match.way == PartialWay::take_over) {
            const auto [priority, duration_ms] = request.block_retention(plan.full * config_.tokens_per_block);
            held.shared.push_back(pool.take_over(match.source, priority, duration_ms));
            plan_.set_taken(plan, window, held.shared.back());
        } else if (match.way == PartialWay::copy) {
            pool.lock_source(plan_.source_now(match), plan.partial_copies(config_.tokens_per_block));
        }
    }
}

void BlockManager::fill_window(const RequestPlan& plan, Sequence& sequence, std::size_t window, Admission& admission) {
    WindowPool& pool = *pools_[window];
    const Request& request = *plan.request;
    const WindowMatch& match = plan_.match(plan, window);
    HeldBlocks& held = sequence.windows[window];
    const std::uint64_t onboarded_before = current_.blocks_onboarded;
    for (const BlockIndex block : plan_.held_claims(plan, window)) {
        if (pool.store[block].host_only()) {
            pool.onboard(block);
        }
    }
    if (match.way == PartialWay::copy) {
        copy_partial(plan, sequence, window);
    }
    const std::uint32_t full_prompt = request.num_tokens() / config_.tokens_per_block;
    while (held.shared.size() < full_prompt) {
        held.shared.push_back(allocate_prompt_block(request, pool, static_cast<std::uint32_t>(held.shared.size())));
    }
    if (request.beam_width > 1 && held.tails.empty()) {
        held.tails.resize(request.beam_width);
    }
    if (held.size() * config_.tokens_per_block < request.num_tokens()) {
        for (std::uint32_t beam = 0; beam < request.beam_width; ++beam) {
            (held.tails.empty() ? held.shared : held.tails[beam])
                .push_back(allocate_prompt_block(request, pool, full_prompt));
        }
    }
    admission.blocks_reused += plan.full + (match.way == PartialWay::none ? 0 : 1);
    admission.blocks_onboarded += current_.blocks_onboarded - onboarded_before;
    admission.blocks_new += AdmissionPlan::blocks_new(plan, match, config_.tokens_per_block);
}

void BlockManager::copy_partial(const RequestPlan& plan, Sequence& sequence, std::size_t window) {
    WindowPool& pool = *pools_[window];
    HeldBlocks& held = sequence.windows[window];
    const std::uint32_t copies = plan.partial_copies(config_.tokens_per_block);
    if (copies > 1) {
        held.tails.resize(copies);
    }
    for (std::uint32_t beam = 0; beam < copies; ++beam) {
        const BlockIndex block = allocate_prompt_block(*plan.request, pool, plan.full);
        pool.copy_prefix(plan_.source_now(plan_.match(plan, window)), block, plan.reuse % config_.tokens_per_block);
        (copies > 1 ? held.tails[beam] : held.shared).push_back(block);
    }
}

BlockIndex BlockManager::allocate_prompt_block(const Request& request, WindowPool& pool, std::uint32_t position) {
    const auto [priority, duration_ms] = request.block_retention(position * config_.tokens_per_block);
    return pool.allocate(priority, duration_ms);
}

void BlockManager::count_admission(const RequestPlan& plan, const Admission& admission, RequestStats& stats) {
    const std::uint64_t full_prompt = plan.request->num_tokens() / config_.tokens_per_block;
    stats = {.tokens_reused = admission.tokens_reused,
             .tokens_new = admission.tokens_new,
             .blocks_reused = admission.blocks_reused,
             .blocks_onboarded = admission.blocks_onboarded,
             .blocks_new = admission.blocks_new,
             .blocks_missed = (full_prompt - plan.full) * pools_.size(),
             .blocks_grown = 0};
    ++current_.requests;
    current_.tokens_reused += stats.tokens_reused;
    current_.tokens_new += stats.tokens_new;
    current_.blocks_reused += stats.blocks_reused;
    current_.blocks_reused_partial += admission.blocks_reused - plan.full * pools_.size();
    current_.blocks_new += stats.blocks_new;
    current_.blocks_missed += stats.blocks_missed;
}

}  // namespace kvfix
