#include "core/prune.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "core/evict.h"

namespace kvfix::prune {
namespace {

// The request's whole blocks as far as the tree has them, and an incomplete one behind them if all of its tokens are the request's.
std::vector<BlockIndex> path_of(const Window& window, const Request& request) {
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    std::vector<BlockIndex> path;
    ParentRef parent = window.tree.find_root(request.identity);
    for (std::uint32_t begin = 0; parent != kNone && begin < request.num_tokens(); begin += tokens_per_block) {
        const std::uint32_t count = std::min(tokens_per_block, request.num_tokens() - begin);
        const std::string extras = request.block_extras(begin, begin + count);
        const BlockContent content{std::span(request.tokens).subspan(begin, count), extras};
        BlockIndex next = kNone;
        if (count == tokens_per_block) {
            next = window.tree.find_child(parent, window.tree.child_key(window.tree.key_of(parent), content), content);
        }
        if (next != kNone) {
            path.push_back(next);
            parent = next;
            continue;
        }
        const ReuseTree::Prefix best = window.tree.best_prefix(parent, content);
        if (best.block != kNone && best.tokens == window.blocks[best.block].num_tokens) {
            path.push_back(best.block);
        }
        break;
    }
    return path;
}

bool in_use(const Block& record) {
    const auto any = [](const auto& counts) { return counts[kPrimary] != 0 || counts[kHost] != 0; };
    return record.owners != 0 || any(record.pins) || any(record.locks) || record.flights != 0;
}

}  // namespace

std::uint64_t conversation(State& state, const Request& request, std::uint32_t tokens_kept) {
    if (tokens_kept > request.num_tokens()) {
        throw std::invalid_argument("request " + std::to_string(request.id) +
                                    ", tokens_kept: " + std::to_string(tokens_kept) + " is more than its " +
                                    std::to_string(request.num_tokens()) + " tokens");
    }
    const std::uint32_t blocks_kept = ceil_div(tokens_kept, state.tokens_per_block());
    std::uint64_t dropped = 0;
    for (Window& window : state.windows) {
        std::vector<BlockIndex> path = path_of(window, request);
        for (; path.size() > blocks_kept; path.pop_back()) {
            const Block& record = std::as_const(window.blocks)[path.back()];
            if (record.children != kNone || in_use(record)) {
                break;
            }
            dropped += evict::drop(state, window, path.back());
        }
    }
    return dropped;
}

std::uint64_t tenant(State& state, std::optional<std::int64_t> lora_id, const Salt& salt) {
    if (!lora_id && std::holds_alternative<std::monostate>(salt)) {
        throw std::invalid_argument("drop_tenant: give a lora_id, a salt or both; reset_reuse_state drops everything");
    }
    std::uint64_t dropped = 0;
    std::vector<BlockIndex> tops;
    for (Window& window : state.windows) {
        for (const std::string& identity : window.tree.identities_of(lora_id, salt)) {
            tops.clear();
            window.tree.collect_root_children(window.tree.find_root(identity), tops);
            for (const BlockIndex top : tops) {
                dropped += evict::drop(state, window, top);
            }
        }
    }
    return dropped;
}

}  // namespace kvfix::prune
