// Matching of a request: walks of whole blocks, and the block that begins as its next one does.
#include <algorithm>
#include <array>

#include "core/admission_planner.h"
#include "core/check.h"
#include "core/pause_point.h"
#include "core/steps.h"

namespace kvfix {
namespace {

// Out of line, so that prompt_block() is small enough to inline.
[[gnu::noinline]] void set_extras(const Request& request, std::uint32_t begin, std::uint32_t end, std::string& extras) {
    extras = request.block_extras(begin, end);
}

// The content of the prompt's block at `position`; `extras` owns what the result refers to.
// Inline: each block of a warm prompt asks twice, and a call costs a tenth of its look-up.
inline BlockContent prompt_block(const Request& request, std::uint32_t position, std::uint32_t tokens_per_block,
                                 std::string& extras) {
    const std::uint32_t begin = position * tokens_per_block;
    const std::uint32_t end = std::min(begin + tokens_per_block, request.num_tokens());
    if (!request.extra_keys.empty()) [[unlikely]] {
        set_extras(request, begin, end, extras);
    }
    return {std::span(request.tokens).subspan(begin, end - begin), extras};
}

// Leading blocks of the first `blocks` that the next token does not look back to.
std::uint32_t blocks_outside(const Window& window, std::uint32_t blocks) {
    const std::uint32_t tokens = blocks * window.blocks.tokens_per_block();
    return tokens > window.reach() ? (tokens - window.reach()) / window.blocks.tokens_per_block() : 0;
}

}  // namespace

const AdmissionPlan& AdmissionPlanner::match(const State& state, std::span<const RequestPtr> requests,
                                             std::uint32_t chunk_tokens) {
    plan_.chunk_tokens = chunk_tokens;
    plan_.requests.clear();
    plan_.matches.clear();
    plan_.path.clear();
    plan_.runs.clear();
    books_.resize(state.windows.size());
    for (const RequestPtr& request : requests) {
        match_request(state, request);
    }
    settle_partials(state);
    KVFIX_PAUSE("admit.planned");
    return plan_;
}

void AdmissionPlanner::match_request(const State& state, const RequestPtr& request) {
    RequestPlan plan{.request = request.get(), .match_begin = static_cast<std::uint32_t>(plan_.matches.size())};
    plan_.matches.resize(plan_.matches.size() + state.windows.size());
    for (const Window& window : state.windows) {
        match_window(state, window, request, match_of(plan, window.index));
    }
    // One window may allow what another does not, at any length. So they agree on the most that all of them allow.
    std::uint32_t reuse = request->num_tokens() - 1;  // the last token is always computed
    for (std::uint32_t before = kNone; before != reuse;) {
        before = reuse;
        for (const Window& window : state.windows) {
            reuse = reusable(window, match_of(plan, window.index), reuse);
        }
    }
    set_reuse(state, plan, state.config.partial_reuse ? reuse : reuse - reuse % state.tokens_per_block());
    plan_.requests.push_back(plan);
}

void AdmissionPlanner::match_window(const State& state, const Window& window, const RequestPtr& request,
                                    WindowMatch& match) {
    match.path_begin = static_cast<std::uint32_t>(plan_.path.size());
    match.runs_begin = static_cast<std::uint32_t>(plan_.runs.size());
    plan_.runs.push_back(first_run(state, window, request));
    match.path_length = plan_.runs.back().end;
    match.runs_end = match.runs_begin + 1;
    const bool has_gaps =
        window.tree.orphaned() != 0 || window.in_flight[kPrimary] != 0 || window.in_flight[kHost] != 0;
    if (state.reuses() && window.tree.by_prefix() && has_gaps) {
        find_later_runs(state, window, *request, match);
    }
}

// Appends its full blocks to the path.
Run AdmissionPlanner::first_run(const State& state, const Window& window, const RequestPtr& request) {
    MatchBook& book = books_[window.index];
    if (MatchBook::Found found; book.find(window, request, found)) {
        plan_.path.insert(plan_.path.end(), found.path.begin(), found.path.end());
        return found.run;
    }
    const std::size_t begin = plan_.path.size();
    const Run run = walk_from_root(state, window, *request);
    book.note(window, request, {std::span(plan_.path).subspan(begin), run});
    return run;
}

Run AdmissionPlanner::walk_from_root(const State& state, const Window& window, const Request& request) {
    const ParentRef root = state.reuses() ? window.tree.find_root(request.identity) : kNone;
    return root == kNone ? Run{} : walk(state, window, request, root, 0);
}

void AdmissionPlanner::check_remembered(const State& state) const {
    for (std::size_t i = 0; i < books_.size(); ++i) {
        const Window& window = state.windows[i];
        books_[i].for_each(window, [&](const RequestPtr& request, const MatchBook::Found& found) {
            AdmissionPlanner afresh;
            const Run run = afresh.walk_from_root(state, window, *request);
            check(run == found.run && std::ranges::equal(afresh.plan_.path, found.path),
                  "another match is remembered than a walk finds");
        });
    }
}

// Appends the blocks below `parent` that hold what the prompt does, from `position` on, as far as guesses go: most blocks
// have one child, which need be neither hashed nor looked up, only compared. Returns the parent of what follows.
ParentRef AdmissionPlanner::descend(const Window& window, const Request& request, ParentRef parent,
                                    std::uint32_t& position) {
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint32_t blocks = request.num_tokens() / tokens_per_block;
    std::string extras;
    for (; position < blocks && parent != kNone; ++position) {
        KVFIX_STEP();
        const BlockIndex child = window.tree.some_child(parent);
        if (child == kNone) {
            break;
        }
        window.tree.prefetch_below(child);
        window.tree.prefetch_further(child);
        if (!window.blocks[child].usable() ||
            !window.tree.holds(child, prompt_block(request, position, tokens_per_block, extras))) {
            break;
        }
        plan_.path.push_back(child);
        parent = window.tree.below(child);
    }
    return parent;
}

// Appends full blocks from `first` on to the path. Where no guess is right, keys run ahead in groups, so that the memory
// they lead to is on its way before it is compared.
Run AdmissionPlanner::walk(const State& state, const Window& window, const Request& request, ParentRef root,
                           std::uint32_t first) {
    constexpr std::uint32_t kAhead = 16;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint32_t blocks = request.num_tokens() / tokens_per_block;
    // Often nothing follows where a guess was wrong, and a hostile caller can arrange that at every block.
    std::uint32_t ahead = 1;
    std::array<std::uint64_t, kAhead> keys{};
    std::string extras;
    const std::size_t path_before = plan_.path.size();
    const auto finished = [&](ParentRef last) {
        Run run{.begin = first, .end = first + static_cast<std::uint32_t>(plan_.path.size() - path_before)};
        if (state.config.partial_reuse && last != kNone) {
            find_source(window, request, last, run);
        }
        return run;
    };
    std::uint32_t begin = first;
    for (ParentRef parent = root;;) {
        const std::uint32_t guessed_from = begin;
        parent = descend(window, request, parent, begin);
        if (begin == blocks || parent == kNone) {
            return finished(parent);
        }
        if (begin != guessed_from) {
            ahead = 1;
        }
        const std::uint32_t count = std::min(ahead, blocks - begin);
        std::uint64_t key = window.tree.key_of(parent);
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
        for (std::uint32_t i = 0; i < count && parent != kNone; ++i) {
            const BlockContent content = prompt_block(request, begin + i, tokens_per_block, extras);
            const BlockIndex block = window.tree.find_child(parent, keys[i], content);
            if (block == kNone || !window.blocks[block].usable()) {
                return finished(parent);
            }
            plan_.path.push_back(block);
            parent = window.tree.below(block);
        }
        begin += count;
        ahead = std::min(2 * ahead, kAhead);
    }
}

// The child of the last matched node that begins as the prompt goes on.
void AdmissionPlanner::find_source(const Window& window, const Request& request, ParentRef parent, Run& run) const {
    if (run.end * window.blocks.tokens_per_block() == request.num_tokens()) {
        return;
    }
    std::string extras;
    const BlockContent next = prompt_block(request, run.end, window.blocks.tokens_per_block(), extras);
    const ReuseTree::Beginning best = window.tree.best_prefix(parent, next);
    if (best.block != kNone && window.blocks[best.block].usable()) {
        run.source = best.block;
        run.tokens = best.tokens;
    }
}

// In a window, blocks behind a gap serve as well. A later run is a row of the prompt's blocks that begins behind one:
// the tree finds it by the hash of the prefix in front of it, though blocks of that prefix are gone. It counts if it
// holds every block that the next position looks back to.
void AdmissionPlanner::find_later_runs(const State& state, const Window& window, const Request& request,
                                       WindowMatch& match) {
    const ReuseTree& tree = window.tree;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const std::uint32_t blocks = request.num_tokens() / tokens_per_block;
    std::string extras;
    std::uint32_t behind = match.path_length;  // the number of blocks in `prefix`
    ReuseTree::Prefix prefix = behind == 0 ? tree.beginning(request.identity) : tree.behind(plan_.path.back());
    while (behind < blocks) {
        // The next block is not there. A run may begin behind it.
        prefix = tree.behind(prefix, prompt_block(request, behind++, tokens_per_block, extras));
        const ParentRef parent = tree.find_prefix(prefix);
        if (parent == kNone) {
            continue;
        }
        plan_.path.resize(match.path_begin + behind, kNone);
        const Run run = walk(state, window, request, parent, behind);
        if (run.begin == run.end) {
            continue;
        }
        prefix = tree.behind(plan_.path.back());
        behind = run.end;
        if (blocks_outside(window, run.end) >= run.begin) {
            plan_.runs.push_back(run);
            match.path_length = run.end;
        } else {  // the next position looks back into the gap
            std::ranges::fill(std::span(plan_.path).subspan(match.path_begin + run.begin), BlockIndex{kNone});
        }
    }
    plan_.path.resize(match.path_begin + match.path_length);
    match.runs_end = static_cast<std::uint32_t>(plan_.runs.size());
}

// The most tokens, up to `tokens_max`, whose reuse the window allows: the blocks that the next token looks back to are there.
// Runs that do not allow it allow no less either: they go, so that a caller that asks for less and less looks at each once.
std::uint32_t AdmissionPlanner::reusable(const Window& window, WindowMatch& match, std::uint32_t tokens_max) const {
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    for (;; --match.runs_end) {
        KVFIX_STEP();
        const Run& run = plan_.runs[match.runs_end - 1];
        const std::uint32_t full = std::min(run.end, tokens_max / tokens_per_block);
        const bool covers = run.begin == 0 || (full > run.begin && blocks_outside(window, full) >= run.begin);
        if (covers) {
            return std::min(tokens_max, full * tokens_per_block + (full < run.end ? tokens_per_block : run.tokens));
        }
    }
}

BlockIndex AdmissionPlanner::source_at(const WindowMatch& match, std::uint32_t position) const {
    for (std::uint32_t i = match.runs_end; i-- > match.runs_begin;) {
        if (const Run& run = plan_.runs[i]; run.begin <= position) {
            return position < run.end ? plan_.path[match.path_begin + position] : run.source;
        }
    }
    return kNone;
}

void AdmissionPlanner::set_reuse(const State& state, RequestPlan& plan, std::uint32_t reuse) {
    plan.reuse = reuse;
    plan.full = reuse / state.tokens_per_block();
    for (const Window& window : state.windows) {
        WindowMatch& match = match_of(plan, window.index);
        match.hold_begin = blocks_outside(window, plan.full);
        match.source = reuse % state.tokens_per_block() == 0 ? BlockIndex{kNone} : source_at(match, plan.full);
    }
}

}  // namespace kvfix
