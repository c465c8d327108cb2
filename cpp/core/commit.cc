#include "core/commit.h"

#include <algorithm>
#include <iterator>

#include "core/block_hash.h"
#include "core/steps.h"

namespace kvfix::commit {

std::vector<BlockHash> hashes(State& state, RequestId id) {
    Sequence& sequence = state.sequences.at_any(id);
    const std::uint32_t tokens_per_block = state.tokens_per_block();
    const BlockHasher hasher(state.config.seed, state.config.hash_bits);
    std::vector<TokenId> tokens(tokens_per_block);
    for (auto position = static_cast<std::uint32_t>(sequence.hashes.size());
         position < sequence.known() / tokens_per_block; ++position) {
        KVFIX_STEP();
        const std::uint32_t begin = position * tokens_per_block;
        sequence.read_tokens(begin, tokens);
        const BlockHash above = position == 0 ? state.windows[0].tree.beginning(sequence.request->identity).hash
                                              : sequence.hashes[position - 1];
        sequence.hashes.push_back(
            hasher.block(above, tokens, sequence.request->block_extras(begin, begin + tokens_per_block)));
    }
    std::vector<BlockHash> shown;
    shown.reserve(sequence.hashes.size());
    std::ranges::transform(sequence.hashes, std::back_inserter(shown),
                           [&](const BlockHash& hash) { return hasher.shown(hash); });
    return shown;
}

}  // namespace kvfix::commit
