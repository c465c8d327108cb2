// The block hash, alone and over a whole prompt.
#include <benchmark/benchmark.h>

#include "core/block_hash.h"
#include "core/config.h"
#include "prompts.h"

namespace kvfix::bench {
namespace {

void hash_one_block(benchmark::State& state) {
    const std::vector<TokenId> tokens = prompt(0, static_cast<std::uint32_t>(state.range(0)));
    const BlockHasher hasher(drawn_seed());
    BlockHash hash = hasher.root("");
    for (auto _ : state) benchmark::DoNotOptimize(hash = hasher.block(hash, tokens, ""));
    state.SetBytesProcessed(state.iterations() * state.range(0) * static_cast<std::int64_t>(sizeof(TokenId)));
}
BENCHMARK(hash_one_block)->Arg(16)->Arg(32)->Arg(64)->Arg(128);

void hash_prompt(benchmark::State& state) {
    const RequestPtr said = request(0, prompt(0));
    const BlockHasher hasher(drawn_seed());
    for (auto _ : state)
        benchmark::DoNotOptimize(block_hashes(*said, hasher, static_cast<std::uint32_t>(state.range(0))));
    state.SetBytesProcessed(state.iterations() * kPromptTokens * static_cast<std::int64_t>(sizeof(TokenId)));
}
BENCHMARK(hash_prompt)->Arg(16)->Arg(32);

}  // namespace
}  // namespace kvfix::bench
