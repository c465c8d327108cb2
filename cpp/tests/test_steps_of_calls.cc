// Calls whose cost another tenant could drive up. Each is counted in steps (core/steps.h), beside much that it does not
// ask for.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/steps_of.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::request;
using testing::steps_of;
using testing::tokens;

constexpr RequestId kFirst = 1000;

// Sequences of four blocks each that have nothing in common.
void admit_many(Manager& manager, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
        manager.add_sequence(request(kFirst + i, tokens(4 * kTokensPerBlock, static_cast<TokenId>(100 * i))));
    }
}

TEST(StepsOfCalls, ATransferThatFailsLooksAtWhatFailedAlone) {
    constexpr std::uint32_t kOthers = 500;
    constexpr std::uint32_t kSharing = 3;
    Manager manager(config(4 * kOthers + 64, 8));
    const testing::Tokens prompt = tokens(2 * kTokensPerBlock, 9'000'000);
    manager.cache(1, prompt);
    manager.flush_primary(2);
    admit_many(manager, kOthers);
    std::vector<RequestPtr> batch;
    std::vector<RequestId> ids;
    for (RequestId id = 10; id < 10 + kSharing; ++id) {
        batch.push_back(request(id, joined(prompt, {1})));
        ids.push_back(id);
    }
    manager.add_batch(batch);
    const TransferBatch onboards = manager.take_transfers();
    ASSERT_EQ(onboards.items.size(), 2U);
    std::vector<RequestId> hurt;
    const std::uint64_t steps = steps_of([&] { hurt = manager.fail(onboards.ticket); });
    EXPECT_EQ(hurt, ids);
    EXPECT_LE(steps, onboards.items.size() * (1 + kSharing) + 8);
}

TEST(StepsOfCalls, WhatSuspendedSequencesKeepIsFoundWithoutLookingAtTheOthers) {
    constexpr std::uint32_t kOthers = 200;
    Manager manager(config(4 * kOthers + 64, 4 * kOthers + 64));
    admit_many(manager, kOthers);
    for (std::uint32_t i = 0; i < kOthers; ++i) {
        manager.suspend_sequence(kFirst + i);
    }
    manager.run_transfers();
    manager.add_sequence(request(1, tokens(kTokensPerBlock, 9'000'000)));
    manager.suspend_sequence(1);
    const TransferBatch offload = manager.take_transfers();
    ASSERT_EQ(offload.items.size(), 1U);
    std::vector<RequestId> hurt;
    EXPECT_LE(steps_of([&] { hurt = manager.fail(offload.ticket); }), 8U);
    EXPECT_EQ(hurt, std::vector<RequestId>{1});
}

TEST(StepsOfCalls, SomebodyElseUnderTheSameIdIsNotHurt) {
    Manager manager(config(16, 8));
    const testing::Tokens prompt = tokens(2 * kTokensPerBlock, 9'000'000);
    manager.cache(1, prompt);
    manager.flush_primary(2);
    manager.add_batch({request(3, joined(prompt, {1})), request(4, joined(prompt, {2}))});
    const TransferBatch onboards = manager.take_transfers();
    ASSERT_EQ(onboards.items.size(), 2U);
    manager.forget(3);
    manager.add_sequence(request(3, tokens(2 * kTokensPerBlock + 1, 500)));
    EXPECT_EQ(manager.fail(onboards.ticket), std::vector<RequestId>{4});
}

// ------------------------------------------------------------------------------------------------ batches, tickets, windows

// A batch in which each request wants a part of the same leaf. The first one takes it over.
std::uint64_t steps_of_sharing_a_leaf(std::uint32_t requests) {
    Manager manager(config(4 * requests));
    manager.cache(1, {1, 2, 3, 4});
    std::vector<RequestPtr> batch;
    for (std::uint32_t i = 0; i < requests; ++i) {
        batch.push_back(request(kFirst + i, {1, 2, 9, static_cast<TokenId>(i)}));
    }
    return steps_of([&] { EXPECT_EQ(manager.add_batch(batch).admitted.back().tokens_reused, 2U); });
}

TEST(StepsOfCalls, ABatchThatSharesOneLeafFindsItsTakerWithoutLookingThroughTheBatch) {
    constexpr std::uint32_t kRequests = 512;
    EXPECT_LE(steps_of_sharing_a_leaf(2 * kRequests), 2 * steps_of_sharing_a_leaf(kRequests) + 64);
}

TEST(StepsOfCalls, OfMillionsOfEmptyTicketsNothingIsKept) {
    TransferLedger ledger;
    const std::uint64_t before = ledger.digest();
    for (std::uint32_t i = 0; i < 3'000'000; ++i) {
        ASSERT_EQ(ledger.take(), TransferLedger::kNothing);
    }
    EXPECT_EQ(ledger.digest(), before);
    EXPECT_EQ(ledger.tickets(), 0U);
}

// Counts the steps of a prompt, its ids, its pins and its end in a manager with this many windows.
std::uint64_t steps_in_windows(std::uint32_t windows) {
    BlockManagerConfig many = config(0);
    many.windows.clear();
    for (std::uint32_t window = 1; window <= windows; ++window) {
        many.windows.push_back({.window_size = 100 * window, .blocks_primary = 64, .blocks_host = 0});
    }
    Manager manager(many);
    manager.cache(1, tokens(8 * kTokensPerBlock, 1000));
    return steps_of([&] {
        manager.add_sequence(request(2, joined(tokens(8 * kTokensPerBlock, 1000), {1})));
        std::vector<BlockId> held;
        for (std::uint32_t window = 1; window <= windows; ++window) {
            for (const std::int64_t id : manager.ids(2, 100 * window)) {
                held.push_back(static_cast<BlockId>(id));
            }
        }
        manager.pin_blocks_by_id(held);
        manager.unpin_blocks_by_id(held, std::nullopt);
        manager.grow(2, kTokensPerBlock);
        manager.remove(2);
    });
}

TEST(StepsOfCalls, AWindowCostsTheSameAmong128AsAmong16) {
    EXPECT_LE(steps_in_windows(128),
              8 * steps_in_windows(16) * 2);  // windows are searched by halving: seven steps for four
}

}  // namespace
}  // namespace kvfix
