#include "prompts.h"

#include <utility>

namespace kvfix::bench {

// SplitMix64's finalizer over a counter. It is cheap, so a profile shows the manager and not the making of prompts.
std::vector<TokenId> prompt(std::uint64_t number, std::uint32_t tokens) {
    constexpr std::uint64_t token_first = 1000;
    constexpr std::uint64_t token_count = 127'000;
    std::vector<TokenId> said(tokens);
    std::uint64_t counter = number << 32;
    for (TokenId& value : said) {
        std::uint64_t bits = ++counter * 0x9e3779b97f4a7c15;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
        value = static_cast<TokenId>(token_first + (bits >> 32) % token_count);
    }
    return said;
}

RequestPtr request(RequestId id, std::vector<TokenId> tokens) {
    return std::make_shared<const Request>(id, std::move(tokens), 1, std::nullopt, Salt{}, std::vector<ExtraKey>{},
                                           std::nullopt);
}

BlockManagerConfig config(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host,
                          HostAdmission admission) {
    BlockManagerConfig made;
    made.tokens_per_block = tokens_per_block;
    made.windows = {{std::nullopt, blocks_primary, blocks_host}};
    made.host_admission = admission;
    return made;
}

void run_transfers(BlockManager& manager) { manager.complete(manager.take_transfers().ticket); }

void pass_through(BlockManager& manager, RequestId id, const RequestPtr& request) {
    manager.add_sequence(request);
    run_transfers(manager);
    manager.store_context_blocks(id, request->num_tokens());
    manager.remove_sequence(id, true, false, std::nullopt);
}

FullManager::FullManager(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host,
                         HostAdmission admission)
    : manager(config(tokens_per_block, blocks_primary, blocks_host, admission)),
      prompts((blocks_primary + blocks_host) / (kPromptTokens / tokens_per_block) + 1) {
    for (RequestId id = 0; id < prompts; ++id) pass_through(manager, id, request(id, prompt(id)));
}

}  // namespace kvfix::bench
