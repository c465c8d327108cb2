#include "core/prune.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/evict.h"
#include "core/steps.h"

namespace kvfix::prune {
namespace {

// Finds below `parent` the block with all of the content, or the longest incomplete one that holds only its beginning.
BlockIndex find_part(const Window& window, ParentRef parent, const BlockContent& content) {
    if (content.tokens.size() == window.blocks.tokens_per_block()) {
        const std::uint64_t key = window.tree.child_key(window.tree.key_of(parent), content);
        if (const BlockIndex whole = window.tree.find_child(parent, key, content); whole != kNone) {
            return whole;
        }
    }
    const ReuseTree::Beginning best = window.tree.best_prefix(parent, content);
    return best.block != kNone && best.tokens == window.blocks[best.block].num_tokens ? best.block : BlockIndex{kNone};
}

// The request's blocks, position by position, as far as the tree has them. In a window some may be gone before those
// that follow them; these are kNone.
std::vector<BlockIndex> path_of(const Window& window, const Request& request) {
    const ReuseTree& tree = window.tree;
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    std::vector<BlockIndex> path;
    ReuseTree::Prefix prefix = tree.by_prefix() ? tree.beginning(request.identity) : ReuseTree::Prefix{};
    ParentRef parent = tree.find_root(request.identity);
    for (std::uint32_t begin = 0; begin < request.num_tokens(); begin += tokens_per_block) {
        KVFIX_STEP();
        const std::uint32_t count = std::min(tokens_per_block, request.num_tokens() - begin);
        const std::string extras = request.block_extras(begin, begin + count);
        const BlockContent content{std::span(request.tokens).subspan(begin, count), extras};
        const BlockIndex part = parent == kNone ? BlockIndex{kNone} : find_part(window, parent, content);
        if (tree.by_prefix()) {
            path.push_back(part);
            prefix = tree.behind(prefix, content);
            parent = tree.find_prefix(prefix);
            continue;
        }
        if (part == kNone) {
            break;
        }
        path.push_back(part);
        if (window.blocks[part].num_tokens < tokens_per_block) {
            break;
        }
        parent = part;
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
            if (path.back() == kNone) {
                continue;
            }
            if (window.tree.has_children(path.back()) || in_use(std::as_const(window.blocks)[path.back()])) {
                break;
            }
            dropped += evict::drop(state, window, path.back());
        }
    }
    return dropped;
}

}  // namespace kvfix::prune
