// One generated token for each of many sequences, in one call. The time is that of the call; `items` are tokens.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>

#include "prompts.h"

namespace kvfix::bench {
namespace {

constexpr std::uint32_t kTokensPerBlock = 32;
constexpr std::uint32_t kSteps = 1024;  // then the sequences start again, so that they never fill the pool

void add_tokens(benchmark::State& state) {
    const auto sequences = static_cast<std::uint32_t>(state.range(0));
    BlockManager manager(config(kTokensPerBlock, sequences * (kSteps / kTokensPerBlock + 2)));
    std::vector<RequestId> ids(sequences);
    std::iota(ids.begin(), ids.end(), RequestId{0});
    for (const RequestId id : ids) manager.add_sequence(request(id, prompt(id, kTokensPerBlock)));
    const std::vector<std::uint32_t> counts(sequences, 1);
    const std::vector<TokenId> tokens(sequences, 1000);
    std::vector<std::uint32_t> computed(sequences, kTokensPerBlock);
    std::uint32_t step = 0;
    for (auto _ : state) {
        manager.add_tokens(ids, counts, tokens, computed);
        std::ranges::for_each(computed, [](std::uint32_t& length) { ++length; });
        if (++step < kSteps) continue;
        state.PauseTiming();
        for (const RequestId id : ids) manager.rewind_kv_cache(id, kSteps);
        step = 0;
        std::ranges::fill(computed, kTokensPerBlock);
        state.ResumeTiming();
    }
    state.SetItemsProcessed(state.iterations() * sequences);
}
BENCHMARK(add_tokens)->Arg(1)->Arg(20)->Arg(256);

}  // namespace
}  // namespace kvfix::bench
