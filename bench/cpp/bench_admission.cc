// Admits a prompt of 2,048 tokens into a full cache. Making and removing the request is not timed.
#include <benchmark/benchmark.h>

#include "prompts.h"

namespace kvfix::bench {
namespace {

constexpr std::uint32_t kBlocks = 100'000;

void admit_cold(benchmark::State& state) {
    FullManager full(static_cast<std::uint32_t>(state.range(0)), kBlocks);
    RequestId id = full.prompts;
    for (auto _ : state) {
        state.PauseTiming();
        const RequestPtr cold = request(id, prompt(id));
        state.ResumeTiming();
        benchmark::DoNotOptimize(full.manager.add_sequence(cold));
        state.PauseTiming();
        // otherwise its slots would be free, and nothing would be evicted
        full.manager.store_context_blocks(id, kPromptTokens);
        full.manager.remove_sequence(id++, true, false, std::nullopt);
        state.ResumeTiming();
    }
}
BENCHMARK(admit_cold)->Arg(16)->Arg(32);

void admit_warm(benchmark::State& state) {
    FullManager full(static_cast<std::uint32_t>(state.range(0)), kBlocks);
    const RequestId id = full.prompts - 1;
    const RequestPtr warm = request(id, prompt(id));
    for (auto _ : state) {
        benchmark::DoNotOptimize(full.manager.add_sequence(warm));
        state.PauseTiming();
        full.manager.remove_sequence(id, false, false, std::nullopt);
        state.ResumeTiming();
    }
}
BENCHMARK(admit_warm)->Arg(16)->Arg(32);

void analyze_warm(benchmark::State& state) {
    FullManager full(static_cast<std::uint32_t>(state.range(0)), kBlocks);
    const RequestId id = full.prompts - 1;
    const RequestPtr warm = request(id, prompt(id));
    for (auto _ : state) benchmark::DoNotOptimize(full.manager.analyze_prefix_reuse(warm));
}
BENCHMARK(analyze_warm)->Arg(16)->Arg(32);

void store_cold(benchmark::State& state) {
    FullManager full(static_cast<std::uint32_t>(state.range(0)), kBlocks);
    RequestId id = full.prompts;
    for (auto _ : state) {
        state.PauseTiming();
        full.manager.add_sequence(request(id, prompt(id)));
        state.ResumeTiming();
        full.manager.store_context_blocks(id, kPromptTokens);
        state.PauseTiming();
        full.manager.remove_sequence(id++, true, false, std::nullopt);
        state.ResumeTiming();
    }
}
BENCHMARK(store_cold)->Arg(16)->Arg(32);

}  // namespace
}  // namespace kvfix::bench
