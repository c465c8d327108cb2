// Work that a caller could drive up stays cheap, however the calls are chosen. The tests count steps (core/steps.h),
// not time.
#include "core/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

#include "core/eviction_queue.h"
#include "core/reuse_tree.h"
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

constexpr Secret kAimedAt{1, 0};
constexpr std::array<Secret, 4> kOtherSeeds{{{2, 0}, {0, 1}, {1ULL << 32, 0}, {~0ULL, ~0ULL}}};

std::vector<BlockIndex> ascending(std::uint32_t count) {
    const auto blocks = blocks_up_to(count);
    return {blocks.begin(), blocks.end()};
}

// ------------------------------------------------------------------------------------------------ eviction

// All blocks are parked, come back in this order, and go.
std::uint64_t steps_of_return(const std::vector<BlockIndex>& order) {
    const auto blocks = static_cast<std::uint32_t>(order.size());
    EvictionQueue queue(blocks);
    for (const BlockIndex block : blocks_up_to(blocks)) {
        queue.push(block, kPriorityDefault);
    }
    return steps_of([&] {
        EXPECT_EQ(queue.victim([](BlockIndex) { return true; }), BlockIndex{0});
        for (const BlockIndex block : order) {
            queue.unpark(block);
        }
        for (const BlockIndex block : blocks_up_to(blocks)) {
            ASSERT_EQ(queue.victim([](BlockIndex) { return false; }), block);
            queue.remove(block);
        }
    });
}

TEST(Steps, ParentsComeBackInAnyOrderWithoutPassingEachOther) {
    constexpr std::uint32_t kBlocks = 4096;
    constexpr std::uint64_t kMost = 4ULL * kBlocks * std::bit_width(kBlocks);  // into and out of two heaps
    std::vector<BlockIndex> order = ascending(kBlocks);
    EXPECT_LE(steps_of_return(order), kMost);
    std::ranges::reverse(order);
    EXPECT_LE(steps_of_return(order), kMost);
    std::ranges::shuffle(order, std::mt19937_64(1));
    EXPECT_LE(steps_of_return(order), kMost);
}

// ------------------------------------------------------------------------------------------------ children of one parent

// Stores children whose contents ascend in the given order, and looks up the last one.
std::uint64_t steps_of_lookup(const Secret& seed, const std::vector<BlockIndex>& order) {
    BlockStore store(static_cast<std::uint32_t>(order.size()), 0, 1);
    ReuseTree tree(store, kBlockHashBits, seed);
    const ParentRef root = tree.open_root(std::string());
    std::vector<TokenId> content(order.size());
    for (std::size_t place = 0; place < order.size(); ++place) {
        content[number(order[place])] = static_cast<TokenId>(place);
    }
    for (const TokenId token : content) {
        const BlockIndex block = store.acquire();
        store.tokens(block)[0] = token;
        store[block].num_tokens = 1;
        store[block].slot[kPrimary] = store.take_slot(kPrimary);
        store[block].key = tree.child_key(tree.key_of(root), tree.content(block));
        tree.add(block, root);
    }
    const TokenId last = content[number(order.back())];
    return steps_of([&] { EXPECT_EQ(tree.best_prefix(root, {{&last, 1}, {}}).block, order.back()); });
}

TEST(Steps, ChildrenChosenToMakeAListOfTheirIndexDoSoForOneSeedAlone) {
    constexpr std::uint32_t kChildren = 2048;
    BlockStore store(1, 0, 1);
    const ReuseTree aimed_at(store, kBlockHashBits, kAimedAt);
    std::vector<BlockIndex> order = ascending(kChildren);
    std::ranges::sort(order, std::ranges::greater{}, [&](BlockIndex block) { return aimed_at.rank(block); });
    EXPECT_GE(steps_of_lookup(kAimedAt, order), kChildren) << "the attack is none";
    for (const Secret& seed : kOtherSeeds) {
        EXPECT_LE(steps_of_lookup(seed, order), 8U * std::bit_width(kChildren)) << "seed " << seed.low;
    }
}

TEST(Steps, ASeedThatNobodyChoseIsDrawn) { EXPECT_NE(BlockManagerConfig().seed, BlockManagerConfig().seed); }

// ------------------------------------------------------------------------------------------------ colliding contents

// Counts the steps that all contents together take to find themselves. An index that spreads them takes about two each,
// whoever chose them.
std::uint64_t steps_of_finding(const Secret& seed, const std::vector<testing::Tokens>& contents) {
    BlockStore store(static_cast<std::uint32_t>(contents.size()), 0, kTokensPerBlock);
    ReuseTree tree(store, kBlockHashBits, seed);
    const ParentRef root = tree.open_root(std::string());
    for (const testing::Tokens& content : contents) {
        const BlockIndex block = store.acquire();
        std::ranges::copy(content, store.tokens(block).begin());
        store[block].num_tokens = kTokensPerBlock;
        store[block].slot[kPrimary] = store.take_slot(kPrimary);
        store[block].key = tree.child_key(tree.key_of(root), tree.content(block));
        tree.add(block, root);
    }
    return steps_of([&] {
        for (const testing::Tokens& content : contents) {
            EXPECT_NE(tree.find_child(root, tree.child_key(tree.key_of(root), {content, {}}), {content, {}}), kNone);
        }
    });
}

// Contents whose first word cancels its key, so that the product of the pair is zero whatever the second word is.
std::vector<testing::Tokens> collisions_under(const Secret& seed, std::int32_t count) {
    SipHash first_key(key_for(seed, "tokens in the index"));
    first_key.add(0);
    const std::uint64_t cancelling = -first_key.end().first;
    std::vector<testing::Tokens> contents;
    for (std::int32_t i = 0; i < count; ++i) {
        contents.push_back({static_cast<TokenId>(cancelling), static_cast<TokenId>(cancelling >> 32), i, 0});
    }
    return contents;
}

TEST(Steps, ContentsChosenToCollideInTheIndexDoSoForOneSeedAlone) {
    constexpr std::int32_t kContents = 1024;
    const std::vector<testing::Tokens> contents = collisions_under(kAimedAt, kContents);
    EXPECT_GE(steps_of_finding(kAimedAt, contents), kContents * kContents / 4U) << "the attack is none";
    for (const Secret& seed : kOtherSeeds) {
        EXPECT_LE(steps_of_finding(seed, contents), 4U * kContents) << "seed " << seed.low;
    }
}

TEST(Steps, ContentsInArithmeticProgressionSpreadLikeAnyOthers) {
    constexpr std::int32_t kContents = 1024;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::vector<testing::Tokens> contents;
        for (std::int32_t i = 0; i < kContents; ++i) {
            contents.push_back({i, 0, 0, 0});
        }
        ASSERT_LE(steps_of_finding({seed, 0}, contents), 4U * kContents) << "seed " << seed;
    }
}

// ------------------------------------------------------------------------------------------------ one call

TEST(Steps, TheRangeOfATokenIsFoundBySearchingHalves) {
    constexpr std::uint32_t kRanges = 4096;
    Retention retention;
    for (std::uint32_t range = 0; range < kRanges; ++range) {
        retention.ranges.push_back({2 * range, 2 * range + 1, static_cast<Priority>(range % 100), std::nullopt});
    }
    std::vector<const RetentionRange*> found;
    const std::uint64_t steps = steps_of([&] {
        for (std::uint32_t token = 0; token < 2 * kRanges; ++token) {
            found.push_back(retention.at(token));
        }
    });
    EXPECT_LE(steps, 2ULL * kRanges * std::bit_width(kRanges));
    for (std::uint32_t token = 0; token < 2 * kRanges; ++token) {
        ASSERT_EQ(found[token], token % 2 == 0 ? &retention.ranges[token / 2] : nullptr) << token;
    }
}

// While some transfer is outstanding, and for ever after one has failed, storing asks which bytes have arrived.
TEST(Steps, WhetherAPromptsBytesHaveComeIsAskedOnceOfEachBlock) {
    constexpr std::uint32_t kBlocks = 500;
    Manager manager(config(kBlocks + 3, 2));
    manager.cache(1, tokens(4, 9'000'000));
    manager.flush_primary(2);
    manager.add_sequence(request(3, joined(tokens(4, 9'000'000), {1})));  // its onboard stays outstanding
    ASSERT_EQ(manager.primary().in_flight, 1U);
    manager.add_sequence(request(4, tokens(kBlocks * kTokensPerBlock, 1000)));
    const std::uint64_t steps = steps_of([&] {
        for (std::uint32_t block = 1; block <= kBlocks; ++block) {
            manager.store_context_blocks(4, block * kTokensPerBlock);
        }
    });
    EXPECT_LE(steps, kBlocks * 16U);  // the descents of the reuse tree count too, one child each
    EXPECT_GE(steps, kBlocks);
}

// A caller that chooses a long salt pays for it once: not in each window, in each call, or for each block below its
// root.
TEST(Steps, ALongSaltIsHashedOnceForARequest) {
    constexpr std::uint32_t kChats = 16;
    constexpr std::uint64_t kWords = 20'000;
    BlockManagerConfig several = config(64);
    several.windows.clear();
    for (const std::uint32_t window_size : {8U, 16U, 24U, 32U, 40U, 48U, 56U, 64U}) {
        several.windows.push_back({.window_size = window_size, .blocks_primary = 64, .blocks_host = 0});
    }
    const Salt salt(std::string(kWords * 8, 's'));
    for (const BlockManagerConfig& each_kind : {config(64), several}) {
        Manager manager(each_kind);
        std::vector<RequestPtr> requests;
        for (std::uint32_t i = 0; i < kChats; ++i) {
            requests.push_back(
                request(i, tokens(2 * kTokensPerBlock, static_cast<TokenId>(1000 * (i + 1))), {.salt = salt}));
        }
        const auto admit_and_store = [&](const RequestPtr& each) {
            manager.add_sequence(each);
            manager.store_context_blocks(each->id, each->num_tokens());
        };
        constexpr std::uint64_t kHashes = 2;  // one for events and windows, one for the index
        EXPECT_GE(steps_of([&] { admit_and_store(requests[0]); }), kHashes * kWords);
        for (std::uint32_t i = 1; i < kChats; ++i) {
            EXPECT_LT(steps_of([&] { admit_and_store(requests[i]); }), (kHashes + 1) * kWords);
        }
        // Once for each request, and once for the root that all of them share.
        EXPECT_LT(steps_of([&] { manager.digest(); }), (kChats + 2) * kWords);
        for (const RequestPtr& each : requests) {
            manager.remove(each->id);
        }
        EXPECT_LT(steps_of([&] { manager.digest(); }), kWords);
        EXPECT_LT(steps_of([&] { admit_and_store(requests[0]); }), kWords);  // known already
    }
}

TEST(Steps, ADigestLooksAtWhatHasChangedAlone) {
    constexpr std::uint32_t kBlocks = 4096;
    Manager manager(config(kBlocks, 64));
    for (std::uint32_t i = 0; i < 64; ++i) {
        manager.cache(100 + i, tokens(16 * kTokensPerBlock, static_cast<TokenId>(1000 * i)));
    }
    manager.add_sequence(request(1, tokens(64 * kTokensPerBlock, 500'000)));
    EXPECT_GE(steps_of([&] { manager.digest(); }), kBlocks);
    EXPECT_EQ(steps_of([&] { manager.digest(); }), 0U);
    const RequestId id = 1;
    const std::uint32_t count = 1;
    manager.add_tokens({&id, 1}, {&count, 1}, std::nullopt);
    const std::uint64_t digest = manager.digest();
    manager.add_tokens({&id, 1}, {&count, 1}, std::nullopt);
    EXPECT_LE(steps_of([&] { EXPECT_NE(manager.digest(), digest); }), 4U);
}

}  // namespace
}  // namespace kvfix
