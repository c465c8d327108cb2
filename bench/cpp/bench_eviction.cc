// What the eviction of a block costs: in the queue by itself, and in a manager whose cold prompts push others out,
// either to the host tier or altogether. With adaptive the full host tier has newcomers alone, which push each other out.
#include <benchmark/benchmark.h>

#include "core/block_store.h"
#include "core/eviction_queue.h"
#include "prompts.h"

namespace kvfix::bench {
namespace {

void queue_victim(benchmark::State& state) {
    const auto blocks = static_cast<std::uint32_t>(state.range(0));
    EvictionQueue queue(blocks);
    for (const BlockIndex block : blocks_up_to(blocks)) queue.push(block, kPriorityDefault);
    for (auto _ : state) {
        const BlockIndex victim = queue.victim([](BlockIndex) { return false; });
        queue.remove(victim);
        queue.push(victim, kPriorityDefault);
    }
}
BENCHMARK(queue_victim)->Arg(10'000)->Arg(1'000'000);

// A whole prompt goes in and out. The host tier has room for half of what primary holds.
void prompt_evicts(benchmark::State& state) {
    constexpr std::uint32_t tokens_per_block = 32;
    const auto blocks = static_cast<std::uint32_t>(state.range(0));
    const auto admission = state.range(2) != 0 ? HostAdmission::adaptive : HostAdmission::all;
    FullManager full(tokens_per_block, blocks, static_cast<std::uint32_t>(state.range(1)), admission);
    RequestId id = full.prompts;
    for (auto _ : state) {
        state.PauseTiming();
        const RequestPtr cold = request(id, prompt(id));
        state.ResumeTiming();
        pass_through(full.manager, id++, cold);
    }
    state.SetItemsProcessed(state.iterations() * (kPromptTokens / tokens_per_block));
}
BENCHMARK(prompt_evicts)
    ->ArgNames({"blocks", "host", "adaptive"})
    ->Args({100'000, 0, 0})
    ->Args({100'000, 50'000, 0})
    ->Args({100'000, 50'000, 1})
    ->Args({1'000'000, 0, 0})
    ->Args({1'000'000, 500'000, 0})
    ->Args({1'000'000, 500'000, 1});

}  // namespace
}  // namespace kvfix::bench
