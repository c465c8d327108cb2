#include "prompts.h"

#include <random>
#include <utility>

namespace kvfix::bench {

std::vector<TokenId> prompt(std::uint64_t number, std::uint32_t tokens) {
    std::mt19937_64 random(number);
    std::uniform_int_distribution<TokenId> token(1000, 127'999);
    std::vector<TokenId> said(tokens);
    for (TokenId& value : said) value = token(random);
    return said;
}

RequestPtr request(RequestId id, std::vector<TokenId> tokens) {
    return std::make_shared<const Request>(id, std::move(tokens), 1, std::nullopt, Salt{}, std::vector<ExtraKey>{},
                                           std::nullopt);
}

BlockManagerConfig config(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host) {
    BlockManagerConfig made;
    made.tokens_per_block = tokens_per_block;
    made.windows = {{std::nullopt, blocks_primary, blocks_host}};
    return made;
}

void run_transfers(BlockManager& manager) { manager.complete(manager.take_transfers().ticket); }

void pass_through(BlockManager& manager, RequestId id, const RequestPtr& request) {
    manager.add_sequence(request);
    run_transfers(manager);
    manager.store_context_blocks(id, request->num_tokens());
    manager.remove_sequence(id, true, false, std::nullopt);
}

FullManager::FullManager(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host)
    : manager(config(tokens_per_block, blocks_primary, blocks_host)),
      prompts(blocks_primary / (kPromptTokens / tokens_per_block) + 1) {
    for (RequestId id = 0; id < prompts; ++id) pass_through(manager, id, request(id, prompt(id)));
}

}  // namespace kvfix::bench
