// Storing in a window, where a block does not need the blocks before it.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/store.h"

namespace kvfix::store {
namespace {

// Enters a private block of the sequence, whose content is written, unless the tree has its equal.
void offer(State& state, Window& window, const Request& request, BlockIndex own, bool first) {
    ReuseTree& tree = window.tree;
    const ReuseTree::Prefix& above = tree.above(own);
    const Block& record = window.blocks[own];
    const ParentRef parent = tree.find_prefix(above);
    if (parent != kNone && tree.find_child(parent, record.key, tree.content(own)) != kNone) {
        return;
    }
    enter(state, window, own, first ? tree.open_root(request.identity) : tree.open_prefix(above, request.identity),
          request);
}

// Writes the content at the cursor. The content of a block that has left goes into `spare`.
BlockContent write_next(Window& window, Sequence& sequence, BlockIndex own, std::vector<TokenId>& spare,
                        std::string& extras) {
    const std::uint32_t tokens_per_block = window.blocks.tokens_per_block();
    const StoreCursor& cursor = sequence.cursors[window.index];
    const std::uint32_t begin = cursor.position * tokens_per_block;
    extras = sequence.request->block_extras(begin, begin + tokens_per_block);
    if (own == kNone) {
        spare.resize(tokens_per_block);
        sequence.read_tokens(begin, spare);
        return {spare, extras};
    }
    sequence.read_tokens(begin, window.blocks.tokens(own));
    window.blocks.set_extras(own, extras);
    window.tree.set_above(own, cursor.prefix);
    window.blocks[own].num_tokens = static_cast<std::uint16_t>(tokens_per_block);
    return window.tree.content(own);
}

}  // namespace

void blocks_by_prefix(State& state, Window& window, Sequence& sequence, std::uint32_t tokens) {
    StoreCursor& cursor = sequence.cursors[window.index];
    const HeldBlocks& held = sequence.windows[window.index];
    const auto full = static_cast<std::uint32_t>(
        std::min<std::size_t>(tokens / window.blocks.tokens_per_block(), held.shared.size()));
    const std::uint32_t limit = std::min(full, first_unsure(state, sequence));
    // These had an equal in the tree when they were written. It may be gone since.
    for (std::uint32_t position = held.left; position < std::min(cursor.position, limit); ++position) {
        if (!window.blocks[held.shared[position]].in_tree) {
            offer(state, window, *sequence.request, held.shared[position], position == 0);
        }
    }
    std::vector<TokenId> spare;
    std::string extras;
    for (; cursor.position < limit; ++cursor.position) {
        const BlockIndex own = held.shared[cursor.position];
        const BlockContent content = write_next(window, sequence, own, spare, extras);
        const ReuseTree::Prefix behind = window.tree.behind(cursor.prefix, content);
        if (own != kNone) {
            window.blocks[own].key = behind.key;
            offer(state, window, *sequence.request, own, cursor.position == 0);
        }
        cursor.prefix = behind;
    }
}

}  // namespace kvfix::store
