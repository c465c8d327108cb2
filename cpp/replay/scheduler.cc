#include "replay/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace kvfix::replay {

bool Scheduler::advance(std::int64_t iterations_max, HostTier* tier) {
    const std::int64_t finished_before = tally_.finished;
    for (std::int64_t step = 0; step < iterations_max && (is_waiting() || active() > 0); ++step) {
        iterate(tier);
        pass_quiet_iterations(tier);
        if (tally_.finished != finished_before) {
            break;
        }
    }
    return is_waiting() || active() > 0;
}

void Scheduler::iterate(HostTier* tier) {
    if (active() == 0) {
        now_ms_ = std::max(now_ms_, requests_[waiting_[first_waiting_]].timestamp_ms);
    }
    const std::int64_t budget = shape_.max_num_tokens - generating_.tokens_next();
    std::int64_t budget_free = budget;
    for (const Prompt& prompt : computing_) {
        budget_free -= prompt.tokens_left;
    }
    if (budget_free > 0) {
        admit(budget_free, tier);
    }
    if (tier != nullptr) {
        tier_is_quiet_ = show_running(*tier);
    }
    generating_.grow(manager_);
    run_transfers();
    compute(budget);
    let_go(tier);
    ++tally_.iterations;
    now_ms_ += shape_.iteration_ms;
}

// Skips iterations in which only time passes: no request arrives, ends, computes a prompt, fills a block or needs one.
void Scheduler::pass_quiet_iterations(const HostTier* tier) {
    if (!computing_.empty() || (tier != nullptr && !tier_is_quiet_)) {
        return;
    }
    constexpr double kNever = std::numeric_limits<double>::infinity();
    double next_ms = kNever;
    if (has_room()) {
        // Only requests that arrive later leave iterations to skip.
        next_ms = shape_.iteration_ms != 0 ? requests_[waiting_[first_waiting_]].timestamp_ms : -kNever;
    }
    std::int64_t passed = 0;
    for (const std::int64_t quiet = generating_.quiet(); passed < quiet && now_ms_ < next_ms; ++passed) {
        now_ms_ += shape_.iteration_ms;  // one by one, because a product would round differently
    }
    generating_.skip(passed);
    tally_.iterations += passed;
}

// Whether the first waiting request fits, as far as sequences and blocks go.
bool Scheduler::has_room() const {
    if (!is_waiting() || std::cmp_greater_equal(active(), shape_.max_batch_size)) {
        return false;
    }
    const auto needed = static_cast<std::int64_t>(requests_[waiting_[first_waiting_]].blocks_needed);
    return blocks_reserved_ + needed <= shape_.blocks_primary;
}

void Scheduler::admit(std::int64_t budget, HostTier* tier) {
    Offers offered = offers(budget);
    if (offered.requests.empty()) {
        return;
    }
    if (offered.tokens_new(0) > budget && computing_.empty()) {
        // No later iteration will have more room for it, so it is admitted alone and computed in chunks.
        offered.requests.resize(1);
        offered.tokens_promised.resize(1);
        budget = offered.tokens_new(0);
    }
    const std::vector<Admission> admitted =
        shape_.is_one_by_one
            ? add_one_by_one(offered, budget)
            : manager_.add_sequence_batch(offered.requests, static_cast<std::uint64_t>(budget)).admitted;
    tally_.count_admissions(budget, offered.tokens_promised, admitted);
    for (const Admission& admission : admitted) {
        check(admission.request_id == waiting_[first_waiting_],
              "requests are admitted in the order in which they wait");
        ++first_waiting_;
        expects_onboards_ |= admission.blocks_onboarded > 0;
        computing_.push_back(begin(admission, tier));
        built_.erase(admission.request_id);
        blocks_reserved_ += static_cast<std::int64_t>(requests_[admission.request_id].blocks_needed);
    }
}

// The waiting requests in order, up to and including the first that exceeds the budget.
Scheduler::Offers Scheduler::offers(std::int64_t budget) {
    Offers out;
    std::int64_t blocks_free = shape_.blocks_primary - blocks_reserved_;
    const auto room = static_cast<std::size_t>(
        std::max<std::int64_t>(shape_.max_batch_size - static_cast<std::int64_t>(active()), 0));
    const std::size_t end = first_waiting_ + std::min(room, waiting_.size() - first_waiting_);
    for (std::size_t at = first_waiting_; at < end; ++at) {
        const RequestId index = waiting_[at];
        blocks_free -= static_cast<std::int64_t>(requests_[index].blocks_needed);
        const bool has_arrived = shape_.iteration_ms == 0 || requests_[index].timestamp_ms <= now_ms_;
        if (blocks_free < 0 || budget < 0 || !has_arrived) {
            break;
        }
        out.requests.push_back(built(index));
        const PrefixReuse promised = manager_.analyze_prefix_reuse(out.requests.back());
        out.tokens_promised.push_back(static_cast<std::int64_t>(promised.tokens));
        budget -= out.tokens_new(out.requests.size() - 1);
    }
    return out;
}

const RequestPtr& Scheduler::built(RequestId index) {
    RequestPtr& request = built_[index];
    if (request == nullptr) {
        request = requests_.request(index);
    }
    return request;
}

// Does what a scheduler does that trusts its estimates: it chooses by them, then adds each request by itself.
std::vector<Admission> Scheduler::add_one_by_one(const Offers& offers, std::int64_t budget) {
    std::vector<Admission> admitted;
    for (std::size_t i = 0; i < offers.requests.size(); ++i) {
        budget -= offers.tokens_new(i);
        if (budget < 0) {
            break;
        }
        admitted.push_back(manager_.add_sequence(offers.requests[i]));
    }
    return admitted;
}

Scheduler::Prompt Scheduler::begin(const Admission& admission, HostTier* tier) {
    const auto tokens_found = static_cast<std::int64_t>(admission.tokens_reused);
    Prompt prompt{.index = admission.request_id,
                  .length = built_.at(admission.request_id)->num_tokens(),
                  .tokens_left = static_cast<std::int64_t>(admission.tokens_new),
                  .is_loading = false};
    if (tier != nullptr) {
        const Found found = tier->find(admission.request_id, tokens_found);
        tally_.count_load(tokens_found, manager_.config().tokens_per_block, found);
        prompt.tokens_left -= found.tokens;
        prompt.is_loading = found.tokens > 0;
    }
    return prompt;
}

bool Scheduler::show_running(HostTier& tier) {
    std::vector<Computed> running;
    for (const Prompt& prompt : computing_) {
        if (!prompt.is_loading) {
            running.push_back({prompt.index, static_cast<std::uint32_t>(prompt.length - prompt.tokens_left)});
        }
    }
    generating_.list_computed(!tier_is_quiet_, running);
    return tier.step(running);
}

void Scheduler::run_transfers() {
    const TransferBatch transfers = manager_.take_transfers();
    if (expects_onboards_) {
        tally_.count_transfers(transfers.items);
        expects_onboards_ = false;
    }
    manager_.complete(transfers.ticket);
}

// Spends the budget on prompts in order of admission. A prompt that gets all it needs starts to generate.
void Scheduler::compute(std::int64_t budget) {
    std::vector<Prompt> unfinished;
    for (Prompt& prompt : computing_) {
        if (!std::exchange(prompt.is_loading, false)) {
            const std::int64_t tokens = std::min(prompt.tokens_left, budget);
            budget -= tokens;
            prompt.tokens_left -= tokens;
            manager_.store_context_blocks(prompt.index, static_cast<std::uint32_t>(prompt.length - prompt.tokens_left));
            if (prompt.tokens_left == 0) {
                generating_.start(prompt.index, prompt.length);
                continue;
            }
        }
        unfinished.push_back(prompt);
    }
    computing_ = std::move(unfinished);
}

void Scheduler::let_go(HostTier* tier) {
    const std::vector<Computed> finished = generating_.take_finished();
    if (tier != nullptr && !finished.empty()) {
        tier->finish(finished);
    }
    for (const auto& [index, positions] : finished) {
        manager_.remove_sequence(index, true, false, std::nullopt, positions);
        blocks_reserved_ -= static_cast<std::int64_t>(requests_[index].blocks_needed);
        ++tally_.finished;
    }
}

}  // namespace kvfix::replay
