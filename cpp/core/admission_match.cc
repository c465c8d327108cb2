// What a request finds: walks of whole blocks, and the block that begins as its next one does.
#include <algorithm>
#include <array>

#include "core/admission_planner.h"
#include "core/pause_point.h"

namespace kvfix {
namespace {

// The content of the prompt's block at `position`; `extras` owns what the result refers to.
// Inline: each block of a warm prompt asks twice, and a call costs a tenth of its look-up.
inline BlockContent prompt_block(const Request& request, std::uint32_t position, std::uint32_t tokens_per_block,
                                 std::string& extras) {
    const std::uint32_t begin = position * tokens_per_block;
    const std::uint32_t end = std::min(begin + tokens_per_block, request.num_tokens());
    if (!request.extra_keys.empty()) {
        extras = request.block_extras(begin, end);
    }
    return {std::span(request.tokens).subspan(begin, end - begin), extras};
}

}  // namespace

const AdmissionPlan& AdmissionPlanner::match(const State& state, std::span<const RequestPtr> requests,
                                             std::uint32_t chunk_tokens) {
    plan_.chunk_tokens = chunk_tokens;
    plan_.requests.clear();
    plan_.matches.clear();
    plan_.path.clear();
    for (const RequestPtr& request : requests) {
        match_request(state, *request);
    }
    settle_partials(state);
    KVFIX_PAUSE("admit.planned");
    return plan_;
}

void AdmissionPlanner::match_request(const State& state, const Request& request) {
    RequestPlan plan{.request = &request, .match_begin = static_cast<std::uint32_t>(plan_.matches.size())};
    plan_.matches.resize(plan_.matches.size() + state.windows.size());
    std::uint32_t reuse = request.num_tokens() - 1;  // the last token is always computed
    for (const Window& window : state.windows) {
        reuse = std::min(reuse, match_window(state, window, request, match_of(plan, window.index)));
    }
    set_reuse(state, plan, state.config.partial_reuse ? reuse : reuse - reuse % state.tokens_per_block());
    plan_.requests.push_back(plan);
}

std::uint32_t AdmissionPlanner::match_window(const State& state, const Window& window, const Request& request,
                                             WindowMatch& match) {
    match.path_begin = static_cast<std::uint32_t>(plan_.path.size());
    const ParentRef root = state.config.block_reuse ? window.tree.find_root(request.identity) : kNone;
    if (root == kNone) {
        return 0;
    }
    walk(window, request, root);
    match.path_length = static_cast<std::uint32_t>(plan_.path.size()) - match.path_begin;
    const std::uint32_t whole = match.path_length * state.tokens_per_block();
    return whole + (state.config.partial_reuse ? longest_partial(window, request, root, match) : 0);
}

// Appends the matched full blocks to the path. Keys run ahead in groups, so that the memory they lead to is on its way
// before it is compared.
void AdmissionPlanner::walk(const Window& window, const Request& request, ParentRef root) {
    constexpr std::uint32_t kAhead = 16;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint32_t blocks = request.num_tokens() / tokens_per_block;
    std::array<std::uint64_t, kAhead> keys{};
    std::string extras;
    ParentRef parent = root;
    std::uint64_t key = window.tree.key_of(root);
    for (std::uint32_t begin = 0; begin < blocks; begin += kAhead) {
        const std::uint32_t count = std::min(kAhead, blocks - begin);
        for (std::uint32_t i = 0; i < count; ++i) {
            key = window.tree.child_key(key, prompt_block(request, begin + i, tokens_per_block, extras));
            keys[i] = key;
            window.tree.prefetch(key);
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            if (const BlockIndex hint = window.tree.hint(keys[i]); hint != kNone) {
                window.blocks.prefetch(hint);
            }
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            const BlockContent content = prompt_block(request, begin + i, tokens_per_block, extras);
            const BlockIndex block = window.tree.find_child(parent, keys[i], content);
            if (block == kNone || !window.blocks[block].usable()) {
                return;
            }
            plan_.path.push_back(block);
            parent = block;
        }
    }
}

// Tokens of the next block that some child of the last matched node has too.
std::uint32_t AdmissionPlanner::longest_partial(const Window& window, const Request& request, ParentRef root,
                                                WindowMatch& match) {
    const std::uint32_t matched = match.path_length * window.blocks.tokens_per_block();
    if (matched == request.num_tokens()) {
        return 0;
    }
    std::string extras;
    const BlockContent next = prompt_block(request, match.path_length, window.blocks.tokens_per_block(), extras);
    const ReuseTree::Prefix best = window.tree.best_prefix(match.path_length == 0 ? root : plan_.path.back(), next);
    if (best.block == kNone || !window.blocks[best.block].usable()) {
        return 0;
    }
    match.source = best.block;
    return best.tokens;
}

void AdmissionPlanner::set_reuse(const State& state, RequestPlan& plan, std::uint32_t reuse) {
    const std::uint32_t tokens_per_block = state.tokens_per_block();
    plan.reuse = reuse;
    plan.full = reuse / tokens_per_block;
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        const std::uint32_t begin = plan.full * tokens_per_block;
        match.hold_begin = begin > window.reach() ? (begin - window.reach()) / tokens_per_block : 0;
        if (reuse % tokens_per_block == 0) {
            match.source = kNone;
        } else if (match.path_length > plan.full) {
            match.source = plan_.path[match.path_begin + plan.full];
        }
    }
}

}  // namespace kvfix
