// The scheduler of a replay. tests/tools/replay/test_plain.py checks that it counts what a plain one counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "replay/scheduler.h"
#include "support.h"

namespace kvfix::replay {
namespace {

constexpr std::uint32_t kRequests = 300;

// Requests from few symbols, so that their beginnings meet.
Requests load() {
    Requests out({.base = 1000, .span = 64, .tokens_per_symbol = 6});
    std::uint32_t dice = 1;
    const auto below = [&](std::uint32_t end) {
        dice = dice * 1664525 + 1013904223;
        return (dice >> 16) % end;
    };
    for (std::uint32_t i = 0; i < kRequests; ++i) {
        std::vector<TokenId> symbols(1 + below(8));
        std::ranges::generate(symbols, [&] { return static_cast<TokenId>(below(3) * 30); });
        const auto length = static_cast<std::uint32_t>(symbols.size()) * 6 - below(6);
        out.add({.symbols = std::move(symbols),
                 .is_spelled = true,
                 .prompt_length = length,
                 .answer = testing::tokens(below(30), static_cast<TokenId>(10'000 + 1000 * i)),
                 .timestamp_ms = i * 3.0,
                 .blocks_needed = 21,
                 .lora_id = std::nullopt,
                 .salt = {}});
    }
    return out;
}

std::vector<RequestId> all() {
    std::vector<RequestId> out(kRequests);
    std::iota(out.begin(), out.end(), RequestId{0});
    return out;
}

const Shape kShape{.blocks_primary = 64,
                   .max_batch_size = 3,
                   .max_num_tokens = 24,
                   .tokens_per_iteration = 2,
                   .iteration_ms = 0.7,
                   .is_one_by_one = false};

// A tier that holds nothing and fails after the given number of steps.
class FailingTier : public HostTier {
  public:
    explicit FailingTier(std::int64_t steps_max) : steps_left_(steps_max) {}

    Found find(RequestId /*index*/, std::int64_t /*tokens_found*/) override { return {}; }
    bool step(std::span<const Computed> /*running*/) override {
        if (steps_left_-- == 0) {
            throw std::runtime_error("no more steps");
        }
        return true;
    }
    void finish(std::span<const Computed> ended) override { finished += ended.size(); }

    std::size_t finished = 0;

  private:
    std::int64_t steps_left_;
};

TEST(Replay, FinishesEveryRequestWithinItsBudgetAndLeavesNothingBehind) {
    const Requests requests = load();
    BlockManager manager(testing::config(64, 200));
    Scheduler scheduler(manager, requests, kShape, all());
    while (scheduler.advance(1, nullptr)) {
        manager.check_invariants();
    }
    const Tally& tally = scheduler.tally();
    EXPECT_EQ(tally.finished, kRequests);
    EXPECT_EQ(tally.overshoots + tally.promises_broken, 0);
    EXPECT_EQ(manager.get_kv_cache_stats().sequences, 0U);
    std::int64_t prompts = 0;
    for (std::uint32_t i = 0; i < kRequests; ++i) {
        prompts += requests[i].prompt_length;
    }
    EXPECT_EQ(tally.tokens.reused + tally.tokens.computed, prompts);
    EXPECT_GT(tally.tokens.reused, 0);
}

TEST(Replay, HowManyIterationsACallTakesChangesNothing) {
    const Requests requests = load();
    std::vector<std::int64_t> iterations;
    for (const std::int64_t at_a_time : {1, 3, 1'000'000}) {
        BlockManager manager(testing::config(64, 200));
        Scheduler scheduler(manager, requests, kShape, all());
        while (scheduler.advance(at_a_time, nullptr)) {
        }
        iterations.push_back(scheduler.tally().iterations);
        iterations.push_back(scheduler.tally().tokens.reused);
    }
    EXPECT_EQ(iterations[0], iterations[2]);
    EXPECT_EQ(iterations[0], iterations[4]);
    EXPECT_EQ(iterations[1], iterations[3]);
    EXPECT_EQ(iterations[1], iterations[5]);
}

TEST(Replay, WhatATierThrowsComesOut) {
    const Requests requests = load();
    BlockManager manager(testing::config(64));
    Scheduler scheduler(manager, requests, kShape, all());
    FailingTier tier(100);
    const auto to_the_end = [&] {
        while (scheduler.advance(1000, &tier)) {
        }
    };
    EXPECT_THROW(to_the_end(), std::runtime_error);
    EXPECT_GT(tier.finished, 0U);
    EXPECT_EQ(static_cast<std::int64_t>(tier.finished), scheduler.tally().finished);
    manager.check_invariants();
}

TEST(Replay, SymbolsAreCountedAroundTheirSpan) {
    Requests requests({.base = 100, .span = 5, .tokens_per_symbol = 7});
    requests.add({.symbols = {3, 0},
                  .is_spelled = true,
                  .prompt_length = 9,
                  .answer = {},
                  .timestamp_ms = 0,
                  .blocks_needed = 1,
                  .lora_id = std::nullopt,
                  .salt = {}});
    EXPECT_EQ(requests.prompt(0), (testing::Tokens{103, 104, 100, 101, 102, 103, 104, 100, 101}));
    EXPECT_THROW(static_cast<void>(requests.prompt(1)), std::out_of_range);
}

}  // namespace
}  // namespace kvfix::replay
