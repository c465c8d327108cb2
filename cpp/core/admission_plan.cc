#include "core/admission_plan.h"

#include <algorithm>
#include <array>

#include "core/pause_point.h"

namespace kvfix {
namespace {

// The content of the prompt's block at `position`; `extras` owns what the result refers to.
BlockContent prompt_block(const Request& request, std::uint32_t position, std::uint32_t tokens_per_block,
                          std::string& extras) {
    const std::uint32_t begin = position * tokens_per_block;
    const std::uint32_t end = std::min(begin + tokens_per_block, request.num_tokens());
    if (!request.extra_keys.empty()) {
        extras = request.block_extras(begin, end);
    }
    return {std::span(request.tokens).subspan(begin, end - begin), extras};
}

}  // namespace

void AdmissionPlan::make(Pools pools, const BlockManagerConfig& config, std::span<const RequestPtr> requests) {
    config_ = &config;
    requests_.clear();
    matches_.clear();
    path_.clear();
    for (const RequestPtr& request : requests) {
        match_request(pools, *request);
    }
    const auto partial = [&](const RequestPlan& plan) { return plan.reuse % config.tokens_per_block != 0; };
    if (std::ranges::any_of(requests_, partial)) {
        begin_marking(pools);
        takers_.resize(pools.size());
        for (std::size_t window = 0; window < pools.size(); ++window) {
            takers_[window].resize(pools[window]->store.size(), kNone);
        }
        for (const RequestPlan& plan : requests_) {
            mark_claims(pools, plan);
        }
        for (RequestPlan& plan : requests_) {
            settle_partial(pools, plan);
        }
    }
    KVFIX_PAUSE("admit.planned");
}

void AdmissionPlan::begin_marking(Pools pools) {
    if (++serial_ != 0) {
        return;
    }
    serial_ = 1;  // the counter went round: marks of four billion plans ago must not look current
    for (const auto& pool : pools) {
        for (BlockIndex block = 0; block < pool->store.size(); ++block) {
            pool->store.mark(block) = 0;
        }
    }
}

// ------------------------------------------------------------------------------------------------ matching

void AdmissionPlan::match_request(Pools pools, const Request& request) {
    RequestPlan plan{.request = &request, .match_begin = static_cast<std::uint32_t>(matches_.size())};
    matches_.resize(matches_.size() + pools.size());
    std::uint32_t reuse = request.num_tokens() - 1;  // the last token is always computed
    for (std::size_t window = 0; window < pools.size(); ++window) {
        reuse = std::min(reuse, match_window(*pools[window], request, matches_[plan.match_begin + window]));
    }
    set_reuse(pools, plan, config_->partial_reuse ? reuse : reuse - reuse % config_->tokens_per_block);
    requests_.push_back(plan);
}

std::uint32_t AdmissionPlan::match_window(const WindowPool& pool, const Request& request, WindowMatch& match) {
    match.path_begin = static_cast<std::uint32_t>(path_.size());
    const ParentRef root = config_->block_reuse ? pool.tree.find_root(request.identity) : kNone;
    if (root == kNone) {
        return 0;
    }
    walk(pool, request, root);
    match.path_length = static_cast<std::uint32_t>(path_.size()) - match.path_begin;
    return match.path_length * config_->tokens_per_block + longest_partial(pool, request, root, match);
}

// Appends the matched full blocks to the path. Keys run ahead in groups, so that the memory they lead to is on its way
// before it is compared.
void AdmissionPlan::walk(const WindowPool& pool, const Request& request, ParentRef root) {
    constexpr std::uint32_t kAhead = 16;
    const std::uint32_t tokens_per_block = config_->tokens_per_block;
    const std::uint32_t blocks = request.num_tokens() / tokens_per_block;
    std::array<std::uint64_t, kAhead> keys{};
    std::string extras;
    ParentRef parent = root;
    std::uint64_t key = pool.tree.key_of(root);
    for (std::uint32_t begin = 0; begin < blocks; begin += kAhead) {
        const std::uint32_t count = std::min(kAhead, blocks - begin);
        for (std::uint32_t i = 0; i < count; ++i) {
            key = pool.tree.child_key(key, prompt_block(request, begin + i, tokens_per_block, extras));
            keys[i] = key;
            pool.tree.prefetch(key);
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            if (const BlockIndex hint = pool.tree.hint(keys[i]); hint != kNone) {
                pool.store.prefetch(hint);
            }
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            const BlockContent content = prompt_block(request, begin + i, tokens_per_block, extras);
            const BlockIndex block = pool.tree.find_child(parent, keys[i], content);
            if (block == kNone || !pool.store[block].usable()) {
                return;
            }
            path_.push_back(block);
            parent = block;
        }
    }
}

// Tokens of the next block that some child of the last matched node has too.
std::uint32_t AdmissionPlan::longest_partial(const WindowPool& pool, const Request& request, ParentRef root,
                                             WindowMatch& match) {
    const std::uint32_t matched = match.path_length * config_->tokens_per_block;
    if (!config_->partial_reuse || matched == request.num_tokens()) {
        return 0;
    }
    std::string extras;
    const BlockContent next = prompt_block(request, match.path_length, config_->tokens_per_block, extras);
    const ReuseTree::Prefix best = pool.tree.best_prefix(match.path_length == 0 ? root : path_.back(), next);
    if (best.block == kNone || !pool.store[best.block].usable()) {
        return 0;
    }
    match.source = best.block;
    return best.tokens;
}

void AdmissionPlan::set_reuse(Pools pools, RequestPlan& plan, std::uint32_t reuse) {
    const std::uint32_t tokens_per_block = config_->tokens_per_block;
    plan.reuse = reuse;
    plan.full = reuse / tokens_per_block;
    for (std::size_t window = 0; window < pools.size(); ++window) {
        WindowMatch& match = matches_[plan.match_begin + window];
        const std::uint32_t begin = plan.full * tokens_per_block;
        const std::uint32_t size = pools[window]->config.window_size.value_or(kNone);
        match.hold_begin = begin > size ? (begin - size) / tokens_per_block : 0;
        if (reuse % tokens_per_block == 0) {
            match.source = kNone;
        } else if (match.path_length > plan.full) {
            match.source = path_[match.path_begin + plan.full];
        }
    }
}

// ------------------------------------------------------------------------------------------------ partial reuse

void AdmissionPlan::mark_claims(Pools pools, const RequestPlan& plan) {
    for (std::size_t window = 0; window < pools.size(); ++window) {
        for (const BlockIndex block : held_claims(plan, window)) {
            pools[window]->store.mark(block) = serial_;
        }
    }
}

void AdmissionPlan::settle_partial(Pools pools, RequestPlan& plan) {
    if (plan.reuse % config_->tokens_per_block == 0) {
        return;
    }
    for (std::size_t window = 0; window < pools.size(); ++window) {
        WindowMatch& match = matches_[plan.match_begin + window];
        match.way = way_of(*pools[window], plan, match.source);
        if (match.way == PartialWay::none) {  // what one window cannot serve, none does
            set_reuse(pools, plan, plan.full * config_->tokens_per_block);
            for (std::size_t before = 0; before < window; ++before) {
                matches_[plan.match_begin + before].way = PartialWay::none;
            }
            return;
        }
    }
    for (std::size_t window = 0; window < pools.size(); ++window) {
        WindowMatch& match = matches_[plan.match_begin + window];
        std::uint32_t& mark = pools[window]->store.mark(match.source);
        if (match.way == PartialWay::take_over) {
            takers_[window][match.source] = plan.match_begin + static_cast<std::uint32_t>(window);
        } else if (mark == serial_) {
            match.taken_by = taker_of(match.source, window);
        }
        mark = serial_;
    }
}

// Entries of earlier plans stay: one counts if this plan's match says the same.
std::uint32_t AdmissionPlan::taker_of(BlockIndex source, std::size_t window) const {
    const std::uint32_t taker = takers_[window][source];
    const bool holds = taker < matches_.size() && taker % takers_.size() == window &&
                       matches_[taker].source == source && matches_[taker].way == PartialWay::take_over;
    return holds ? taker : kNone;
}

PartialWay AdmissionPlan::way_of(const WindowPool& pool, const RequestPlan& plan, BlockIndex source) const {
    const Block& block = pool.store[source];
    const bool free_leaf = block.has(kPrimary) && !block.held_primary() && block.children == kNone;
    if (free_leaf && pool.store.mark(source) != serial_ && plan.partial_copies(config_->tokens_per_block) == 1) {
        return PartialWay::take_over;
    }
    return config_->copy_on_partial_reuse ? PartialWay::copy : PartialWay::none;
}

}  // namespace kvfix
