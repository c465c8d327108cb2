// What these benchmarks share: prompts from a seed, and a manager that is full of stored ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/block_manager.h"

namespace kvfix::bench {

inline constexpr std::uint32_t kPromptTokens = 2048;

std::vector<TokenId> prompt(std::uint64_t number, std::uint32_t tokens = kPromptTokens);
RequestPtr request(RequestId id, std::vector<TokenId> tokens);
BlockManagerConfig config(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host = 0,
                          HostAdmission admission = HostAdmission::all);

// Admits a prompt, stores it and removes it. Transfers complete at once.
void pass_through(BlockManager& manager, RequestId id, const RequestPtr& request);
void run_transfers(BlockManager& manager);

// Every block holds part of a stored prompt, so whatever comes next evicts. Prompts 0 .. prompts-1 were stored.
struct FullManager {
    FullManager(std::uint32_t tokens_per_block, std::uint32_t blocks_primary, std::uint32_t blocks_host = 0,
                HostAdmission admission = HostAdmission::all);

    BlockManager manager;
    RequestId prompts;
};

}  // namespace kvfix::bench
