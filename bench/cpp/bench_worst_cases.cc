// Work that a caller could choose to slow calls down, beside the same amount of usual work. The two curves must grow
// alike.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/eviction_queue.h"
#include "core/reuse_tree.h"
#include "prompts.h"

namespace kvfix::bench {
namespace {

enum Kind : std::int64_t { kUsual, kChosen };

void sizes(benchmark::internal::Benchmark* bench) {
    for (const std::int64_t kind : {kUsual, kChosen}) {
        for (const std::int64_t size : {1 << 10, 1 << 13, 1 << 16}) {
            bench->Args({size, kind});
        }
    }
    bench->ArgNames({"n", "chosen"})->Unit(benchmark::kMicrosecond);
}

// Every parent waits for a child and comes back, in order. The usual ones go at once, the chosen ones when all are
// back.
void parents_come_back(benchmark::State& state) {
    const auto blocks = static_cast<std::uint32_t>(state.range(0));
    EvictionQueue queue(blocks);
    for (auto _ : state) {
        for (const BlockIndex block : blocks_up_to(blocks)) queue.push(block, kPriorityDefault);
        benchmark::DoNotOptimize(queue.victim([](BlockIndex) { return true; }));
        for (const BlockIndex block : blocks_up_to(blocks)) {
            queue.unpark(block);
            if (state.range(1) == kUsual) queue.remove(block);
        }
        for (const BlockIndex block : blocks_up_to(state.range(1) == kChosen ? blocks : 0)) queue.remove(block);
    }
    state.SetItemsProcessed(state.iterations() * blocks);
}
BENCHMARK(parents_come_back)->Apply(sizes);

// Children of one parent, each with one token. The chosen ones would turn another manager's index into a list.
void child_looked_up(benchmark::State& state) {
    const auto children = static_cast<std::uint32_t>(state.range(0));
    BlockStore store(children, 0, 1);
    const ReuseTree other(store, kBlockHashBits, Secret{});
    ReuseTree tree(store, kBlockHashBits, drawn_seed());
    const ParentRef root = tree.open_root(std::string());
    const auto all = store.all();
    std::vector<BlockIndex> order(all.begin(), all.end());
    if (state.range(1) == kChosen) {
        std::ranges::sort(order, std::ranges::greater{}, [&](BlockIndex block) { return other.rank(block); });
    }
    for (std::uint32_t place = 0; place < children; ++place)
        store.tokens(order[place])[0] = static_cast<TokenId>(place);
    for (const BlockIndex block : blocks_up_to(children)) {
        store[block].num_tokens = 1;
        store[block].key = tree.child_key(tree.key_of(root), tree.content(block));
        tree.add(block, root);
    }
    const auto last = static_cast<TokenId>(children - 1);
    for (auto _ : state) {
        benchmark::DoNotOptimize(tree.best_prefix(root, {{&last, 1}, {}}));
    }
}
BENCHMARK(child_looked_up)->Apply(sizes);

// A batch of short prompts that each reuse a part of a cached block; the chosen ones all reuse the same one.
void batch_admitted(benchmark::State& state) {
    constexpr std::uint32_t tokens_per_block = 4;
    const auto requests = static_cast<std::uint32_t>(state.range(0));
    BlockManagerConfig config;
    config.tokens_per_block = tokens_per_block;
    config.windows = {{.window_size = std::nullopt, .blocks_primary = 3 * requests + 8, .blocks_host = 0}};
    const auto tokens_of = [&](std::uint32_t leaf, TokenId last) {
        return std::vector<TokenId>{static_cast<TokenId>(leaf), 1, 2, last};
    };
    std::vector<RequestPtr> batch;
    for (std::uint32_t i = 0; i < requests; ++i) {
        batch.push_back(request(requests + i, tokens_of(state.range(1) == kChosen ? 0 : i, 9)));
    }
    for (auto _ : state) {
        state.PauseTiming();
        auto manager = std::make_unique<BlockManager>(config);
        for (std::uint32_t leaf = 0; leaf < requests; ++leaf) {
            manager->add_sequence(request(leaf, tokens_of(leaf, 3)));
            manager->store_context_blocks(leaf, tokens_per_block);
            manager->remove_sequence(leaf, true, false, std::nullopt);
        }
        state.ResumeTiming();
        benchmark::DoNotOptimize(manager->add_sequence_batch(batch, std::nullopt));
        state.PauseTiming();
        manager.reset();
        state.ResumeTiming();
    }
    state.SetItemsProcessed(state.iterations() * requests);
}
BENCHMARK(batch_admitted)->Apply(sizes);

// A prompt of that many blocks. The chosen one gives each block a retention range of its own.
void prompt_retained(benchmark::State& state) {
    constexpr std::uint32_t tokens_per_block = 4;
    const auto blocks = static_cast<std::uint32_t>(state.range(0));
    Retention retention;
    const std::uint32_t ranges = state.range(1) == kChosen ? blocks : 1;
    for (std::uint32_t i = 0; i < ranges; ++i) {
        const std::uint32_t begin = i * tokens_per_block;
        retention.ranges.push_back({begin, begin + tokens_per_block, kPriorityDefault, std::nullopt});
    }
    const Request asked(0, std::vector<TokenId>(std::size_t{blocks} * tokens_per_block, 1), 1, std::nullopt, {}, {},
                        retention);
    for (auto _ : state) {
        for (std::uint32_t block = 0; block < blocks; ++block) {
            benchmark::DoNotOptimize(asked.block_retention(block * tokens_per_block));
        }
    }
    state.SetItemsProcessed(state.iterations() * blocks);
}
BENCHMARK(prompt_retained)->Apply(sizes);

// A prompt stored block by block. For the chosen one, a transfer has failed before.
void chunks_stored(benchmark::State& state) {
    constexpr std::uint32_t tokens_per_block = 4;
    const auto blocks = static_cast<std::uint32_t>(state.range(0));
    BlockManagerConfig config;
    config.tokens_per_block = tokens_per_block;
    config.windows = {{.window_size = std::nullopt, .blocks_primary = blocks + 8, .blocks_host = 0}};
    for (auto _ : state) {
        state.PauseTiming();
        auto manager = std::make_unique<BlockManager>(config);
        if (state.range(1) ==
            kChosen) {  // two share a cached block's first tokens: the second gets them by a copy that fails
            manager->add_sequence(request(1, {1, 2, 3, 4}));
            manager->store_context_blocks(1, tokens_per_block);
            manager->add_sequence(request(2, {1, 2, 3, 9}));
            manager->fail(manager->take_transfers().ticket);
        }
        std::vector<TokenId> tokens(std::size_t{blocks} * tokens_per_block);
        std::iota(tokens.begin(), tokens.end(), 100);
        manager->add_sequence(request(3, std::move(tokens)));
        state.ResumeTiming();
        for (std::uint32_t block = 1; block <= blocks; ++block)
            manager->store_context_blocks(3, block * tokens_per_block);
        state.PauseTiming();
        manager.reset();
        state.ResumeTiming();
    }
    state.SetItemsProcessed(state.iterations() * blocks);
}
BENCHMARK(chunks_stored)->Apply(sizes);

}  // namespace
}  // namespace kvfix::bench
