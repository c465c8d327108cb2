// Prompts that are admitted chunk by chunk: windows serve any length, and no other request gets the blocks that are
// kept for a chunk.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::message_of;
using testing::request;
using testing::RequestOptions;
using testing::Tokens;
using testing::tokens;

constexpr std::uint32_t kWindow = 8;
constexpr std::uint32_t kChunk = 16;

BlockManagerConfig one_window(std::uint32_t blocks_primary, std::uint32_t blocks_host = 0) {
    BlockManagerConfig out = config(blocks_primary, blocks_host);
    out.windows.front().window_size = kWindow;
    return out;
}

// The blocks that anybody may have, in the window that has fewest.
std::uint64_t there(const Manager& manager) { return std::ranges::min(manager.free_blocks_without({})); }

// Reserves the rest of a prompt, each chunk once the one before has been computed.
void prefill(Manager& manager, RequestId id, std::uint32_t length, std::uint32_t chunk) {
    for (std::uint32_t reserved = manager.get_token_count(id); reserved < length;) {
        const std::uint32_t count = std::min(chunk, length - reserved);
        manager.grow(id, count, reserved);
        reserved += count;
    }
    manager.store_context_blocks(id, length);
}

// Admits a prompt in chunks, computes it and removes it. Returns how much it reused.
std::uint64_t serve(Manager& manager, RequestId id, const Tokens& prompt, std::uint32_t chunk,
                    RequestOptions options = {}) {
    const Admission admission = manager.add_sequence(request(id, prompt, std::move(options)), chunk);
    manager.run_transfers();
    prefill(manager, id, static_cast<std::uint32_t>(prompt.size()), chunk);
    manager.remove(id, static_cast<std::uint32_t>(prompt.size()));
    return admission.tokens_reused;
}

// ------------------------------------------------------------------------------------------------ any length

struct Served {
    std::uint32_t length;
    std::uint32_t chunk;
};

class AnyLength : public ::testing::TestWithParam<Served> {};

TEST_P(AnyLength, FitsAWindowOf8With16Blocks) {
    const auto [length, chunk] = GetParam();
    Manager manager(one_window(16));
    const Tokens prompt = tokens(length, 1000);
    EXPECT_THROW(manager.add_sequence(request(1, prompt)), OutOfBlocks);
    EXPECT_EQ(serve(manager, 1, prompt, chunk), 0U);
    manager.check_invariants();
    EXPECT_EQ(there(manager), 16U) << "nothing is kept for a prompt that has gone";
    EXPECT_EQ(serve(manager, 2, joined(prompt, {1}), chunk), length - length % kTokensPerBlock)
        << "the window's last blocks are enough";
    manager.check_invariants();
}

INSTANTIATE_TEST_SUITE_P(Chunks, AnyLength,
                         ::testing::Values(Served{400, 1}, Served{400, 7}, Served{400, 53}, Served{100'000, 32}));

TEST(Chunks, OfOneMoreTokenThanTheWindowHasRoomForAreRefused) {
    Manager manager(one_window(16));
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.add_sequence(request(1, tokens(400, 1000)), 54), OutOfBlocks);
    EXPECT_EQ(manager.digest(), before);
}

TEST(Chunks, WhatIsKeptServesThemAndNobodyElse) {
    Manager manager(one_window(16));
    manager.add_sequence(request(1, tokens(400, 1000)), kChunk);
    EXPECT_EQ(there(manager), 9U) << "8 + 16 positions touch up to seven blocks";
    EXPECT_THROW(manager.add_sequence(request(2, tokens(40, 9000))), OutOfBlocks);
    manager.add_sequence(request(2, tokens(36, 9000)));
    EXPECT_THROW(manager.grow(2, 1), OutOfBlocks);
    prefill(manager, 1, 400, kChunk);
    manager.check_invariants();
}

TEST(Chunks, TokensOfOneCallLeaveBeforeOthersCome) {
    Manager manager(one_window(7));
    manager.add_sequence(request(1, tokens(400, 1000)), kChunk);
    manager.grow(1, 12, 16);
    EXPECT_EQ(manager.primary().owned, 5U);
    EXPECT_THROW(manager.grow(1, 16, 16), OutOfBlocks) << "more than a chunk beyond what is computed";
    manager.grow(1, 16, 28);
    manager.check_invariants();
}

// Pins of cached blocks do not look at what is kept. They may hold it until they end.
TEST(Chunks, WhatComesBackIsKeptAlsoWherePinsHoldTheRest) {
    Manager manager(one_window(7));
    manager.add_sequence(request(9, tokens(8, 9000)));
    const std::vector<BlockId> cached = manager.pin(9);
    manager.remove(9, 8);
    manager.unpin_blocks_by_id(cached, std::nullopt);
    manager.add_sequence(request(1, tokens(400, 1000)), kChunk);
    manager.pin_blocks_by_id(cached);
    const WindowStats pinned = manager.get_kv_cache_stats().windows.front();
    EXPECT_LE(pinned.kept, pinned.primary.free + pinned.primary.cached) << "what is available is never negative";
    manager.store_context_blocks(1, kChunk);
    manager.unpin_blocks_by_id(cached, std::nullopt);
    EXPECT_EQ(there(manager), 0U) << "two blocks have left, and the next chunk needs their slots";
    EXPECT_THROW(manager.add_sequence(request(2, tokens(1, 9000))), OutOfBlocks);
    manager.grow(1, kChunk, kChunk);
    manager.check_invariants();
}

TEST(Chunks, WhoseSlotsHisOwnPinsHoldTakesNobodyElses) {
    Manager manager(one_window(14));
    manager.add_sequence(request(1, tokens(400, 1000)), kChunk);
    manager.add_sequence(request(2, tokens(400, 2000)), kChunk);
    const std::vector<BlockId> pinned = manager.pin(1);
    manager.grow(1, 12, kChunk);
    EXPECT_EQ(there(manager), 0U);
    EXPECT_THROW(manager.grow(1, 4), OutOfBlocks) << "two of its slots are pinned, and it has none left";
    manager.grow(2, 12, kChunk);
    manager.check_invariants();
    manager.unpin_blocks_by_id(pinned, std::nullopt);
    manager.grow(1, 4);
    manager.check_invariants();
}

// ------------------------------------------------------------------------------------------------ suspension

TEST(Chunks, ASequenceIsNotSuspendedBetweenTwoOfThem) {
    Manager manager(one_window(16, 16));
    manager.add_sequence(request(1, tokens(40, 1000)), kChunk);
    for (const std::uint32_t reserved : {16U, 32U}) {
        const std::uint64_t before = manager.digest();
        const std::string why = message_of<std::invalid_argument>([&] { manager.suspend_sequence(1); });
        EXPECT_NE(why.find(std::to_string(reserved) + " of its prompt's 40 tokens"), std::string::npos) << why;
        EXPECT_EQ(manager.digest(), before);
        EXPECT_EQ(manager.run_transfers().size(), 0U);
        manager.grow(1, std::min(kChunk, 40 - reserved), reserved);
    }
    const auto held = manager.ids(1);
    EXPECT_EQ(manager.suspend_sequence(1), 4U) << "behind the last one it is: those that have not left the window";
    manager.run_transfers();
    manager.check_invariants();
    EXPECT_EQ(there(manager), 16U);
    EXPECT_EQ(serve(manager, 2, tokens(400, 9000), kChunk), 0U) << "its slots serve another's chunks meanwhile";
    EXPECT_EQ(manager.resume_sequence(1), 4U);
    manager.run_transfers();
    EXPECT_EQ(manager.ids(1), held);
    manager.grow(1, Tokens{5}, 40);
    manager.remove(1, 41);
    EXPECT_EQ(manager.reusable(joined(tokens(40, 1000), {5, 6})), 41U);
    manager.check_invariants();
}

TEST(Chunks, ASequenceThatComesBackTakesNothingOfWhatIsKept) {
    Manager manager(one_window(16, 16));
    manager.add_sequence(request(2, tokens(40, 2000)));
    manager.suspend_sequence(2);
    manager.run_transfers();
    manager.add_sequence(request(1, tokens(400, 1000)), kChunk);
    EXPECT_EQ(manager.blocks_to_resume(2), std::vector<std::uint64_t>{10});
    const std::uint64_t before = manager.digest();
    EXPECT_THROW(manager.resume_sequence(2), OutOfBlocks) << "nine are there";
    EXPECT_EQ(manager.digest(), before);
    prefill(manager, 1, 400, kChunk);
    manager.remove(1, 400);
    EXPECT_EQ(manager.resume_sequence(2), 10U);
    manager.run_transfers();
    manager.check_invariants();
}

// ------------------------------------------------------------------------------------------------ what is found behind a gap

// A prompt of six blocks. Those outside the window have been evicted one after the other.
class Gaps : public ::testing::Test {
  protected:
    void evict(std::uint32_t blocks) {
        manager.add_sequence(request(9, tokens(blocks * kTokensPerBlock, 900'000)));
        manager.forget(9);
    }

    const Tokens prompt = tokens(24, 1000);
    Manager manager{one_window(6)};
};

TEST_F(Gaps, EvictingWhatLiesOutsideAWindowCostsNoReuse) {
    manager.cache(1, prompt);
    for (std::uint32_t blocks = 1; blocks <= 4; ++blocks) {
        evict(blocks);
        EXPECT_EQ(manager.primary().cached, 6 - blocks);
        EXPECT_EQ(manager.reusable(joined(prompt, {1})), 24U);
        manager.check_invariants();
    }
    EXPECT_EQ(manager.reusable(tokens(21, 1000)), 0U) << "one of its last two blocks has gone";
    const Admission admission = manager.add_sequence(request(2, joined(prompt, {1})));
    EXPECT_EQ(admission.tokens_reused, 24U);
    EXPECT_EQ(admission.blocks_new, 1U);
    EXPECT_EQ(std::ranges::count(manager.ids(2), -1), 4);
    manager.forget(2);
    evict(5);
    EXPECT_EQ(manager.reusable(joined(prompt, {1})), 0U);
}

// Nobody can use the blocks behind a gap without the whole window before some position. So they count as absent.
TEST_F(Gaps, WhatDoesNotCoverAWindowIsNotReused) {
    manager.cache(1, prompt);
    evict(4);
    manager.cache(2, tokens(12, 1000));
    manager.add_sequence(request(3, joined(prompt, {1})));
    manager.forget(3);  // blocks 4 and 5 are the newest
    evict(3);
    EXPECT_EQ(manager.reusable(tokens(9, 1000)), 0U) << "block 1 is there, block 0 is not";
    const PrefixReuse reuse = manager.analyze_prefix_reuse(request(4, joined(prompt, {1})));
    EXPECT_EQ(reuse.tokens, 24U);
    EXPECT_EQ(reuse.blocks_primary, 2U) << "blocks 4 and 5, not 1";
    manager.check_invariants();
}

// ------------------------------------------------------------------------------------------------ many windows

constexpr std::uint32_t kWindows = 128;
constexpr std::uint32_t kLength = 512;

// Windows of 4, 8, ..., 508 tokens, each with room for itself, a chunk of four and one more block, and one window that
// blocks never leave.
BlockManagerConfig many_windows() {
    BlockManagerConfig out = config(1);
    out.windows.clear();
    for (std::uint32_t i = 1; i < kWindows; ++i) {
        out.windows.push_back({.window_size = i * kTokensPerBlock, .blocks_primary = i + 3, .blocks_host = 0});
    }
    out.windows.push_back({.window_size = 4 * kLength, .blocks_primary = kLength / kTokensPerBlock, .blocks_host = 0});
    return out;
}

TEST(ManyWindows, EachLosesWhatItHasLeftAndNoMore) {
    Manager manager(many_windows());
    manager.add_sequence(request(1, tokens(kLength, 1000)), kTokensPerBlock);
    prefill(manager, 1, kLength, kTokensPerBlock);
    for (std::uint32_t i = 1; i < kWindows; ++i) {
        const WindowSize size = i * kTokensPerBlock;
        EXPECT_EQ(manager.get_num_front_blocks_removed(1, size), kLength / kTokensPerBlock - i);
        const auto ids = manager.ids(1, size);
        EXPECT_EQ(std::ranges::count(ids, -1), kLength / kTokensPerBlock - i);
        EXPECT_EQ(ids.size(), kLength / kTokensPerBlock);
    }
    EXPECT_EQ(std::ranges::count(manager.ids(1, 4 * kLength), -1), 0);
    manager.check_invariants();
    manager.remove(1, kLength);
    EXPECT_EQ(manager.reusable(joined(tokens(kLength, 1000), {1})), kLength) << "each has its last blocks";
    manager.check_invariants();
}

// The large window has lost the prompt's end, the smaller ones what precedes theirs. Each alone could serve a part.
TEST(ManyWindows, AgreeOnWhatAllOfThemAllow) {
    Manager manager(many_windows());
    serve(manager, 1, tokens(kLength, 1000), kTokensPerBlock);
    manager.add_sequence(request(2, tokens(kTokensPerBlock, 9000)));
    EXPECT_EQ(manager.reusable(joined(tokens(kLength, 1000), {1})), kLength - kTokensPerBlock);
    manager.add_sequence(request(3, tokens(2 * kTokensPerBlock, 19'000)));
    EXPECT_EQ(manager.reusable(joined(tokens(kLength, 1000), {1})), 0U);
    manager.check_invariants();
}

}  // namespace
}  // namespace kvfix
