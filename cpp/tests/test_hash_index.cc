// HashIndex: runs of colliding entries, wrap-around at the end of the table, and removal that leaves no holes.
#include "core/hash_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/block_store.h"
#include "tests/block_numbers.h"

namespace kvfix {
namespace {

using testing::operator""_b;

constexpr std::uint32_t kBlocks = 20;
constexpr std::uint64_t kTable = 32;  // slots of an index for kBlocks: a hash's home is hash % kTable

std::set<BlockIndex> filed_under(const HashIndex& index, std::uint64_t hash) {
    std::set<BlockIndex> blocks;
    const BlockIndex end = index.find(hash, [&](BlockIndex block) {
        EXPECT_TRUE(blocks.insert(block).second) << "block " << number(block) << " is offered twice";
        return false;
    });
    EXPECT_EQ(end, kNone);
    return blocks;
}

TEST(HashIndex, FindsWhatWasInsertedAndNothingElse) {
    HashIndex index(kBlocks);
    index.insert(7, 3_b);
    EXPECT_EQ(filed_under(index, 7), (std::set<BlockIndex>{3_b}));
    EXPECT_EQ(filed_under(index, 8), std::set<BlockIndex>{});
    EXPECT_EQ(filed_under(index, 7 + kTable), std::set<BlockIndex>{}) << "the same home, another hash";
}

TEST(HashIndex, TheCallerChoosesAmongBlocksOfOneHash) {
    HashIndex index(kBlocks);
    for (const BlockIndex block : {4_b, 9_b, 2_b}) {
        index.insert(5, block);
    }
    EXPECT_EQ(index.find(5, [](BlockIndex block) { return block == 9_b; }), 9_b);
    EXPECT_EQ(filed_under(index, 5), (std::set<BlockIndex>{2_b, 4_b, 9_b}));
    index.erase(5, 9_b);
    EXPECT_EQ(filed_under(index, 5), (std::set<BlockIndex>{2_b, 4_b}));
}

TEST(HashIndex, OffersHashesThatAgreeInTheirLowHalf) {
    HashIndex index(kBlocks);
    index.insert(0x1'0000'0005, 1_b);
    index.insert(0x2'0000'0005, 2_b);
    EXPECT_EQ(filed_under(index, 0x1'0000'0005), (std::set<BlockIndex>{1_b, 2_b}));
}

TEST(HashIndex, ARunGoesOnAtTheBeginningOfTheTable) {
    HashIndex index(kBlocks);
    const std::uint64_t home = kTable - 1;
    for (const BlockIndex block : blocks_up_to(4)) {
        index.insert(home + kTable * number(block), block);  // lands in slots 31, 0, 1, 2
    }
    index.insert(0, 10_b);  // at home in slot 0, pushed to slot 3
    for (const BlockIndex block : blocks_up_to(4)) {
        EXPECT_EQ(filed_under(index, home + kTable * number(block)), std::set<BlockIndex>{block});
    }
    index.erase(home, 0_b);  // the run moves up, past the end of the table
    EXPECT_EQ(filed_under(index, home), std::set<BlockIndex>{});
    for (const BlockIndex block : {1_b, 2_b, 3_b}) {
        EXPECT_EQ(filed_under(index, home + kTable * number(block)), std::set<BlockIndex>{block});
    }
    EXPECT_EQ(filed_under(index, 0), std::set<BlockIndex>{10_b});
}

TEST(HashIndex, DeletionDoesNotMoveAnEntryBeforeItsHome) {
    HashIndex index(kBlocks);
    index.insert(3, 0_b);
    index.insert(4, 1_b);
    index.insert(3 + kTable, 2_b);  // home 3, in slot 5
    index.insert(5, 3_b);           // home 5, in slot 6
    index.erase(3, 0_b);
    EXPECT_EQ(filed_under(index, 3 + kTable), std::set<BlockIndex>{2_b});
    EXPECT_EQ(filed_under(index, 4), std::set<BlockIndex>{1_b});
    EXPECT_EQ(filed_under(index, 5), std::set<BlockIndex>{3_b});
}

TEST(HashIndex, AHintIsABlockFiledAtHomeOrNone) {
    HashIndex index(kBlocks);
    EXPECT_EQ(index.hint(6), kNone);
    index.insert(6, 4_b);
    EXPECT_EQ(index.hint(6), 4_b);
    EXPECT_EQ(index.hint(6 + kTable), kNone);
}

// Few homes, many of them at the end of the table, give long runs that wrap. Duplicates are included.
TEST(HashIndex, AgreesWithAMultimapOverRandomOperations) {
    std::mt19937_64 random(3);
    HashIndex index(kBlocks);
    std::multimap<std::uint64_t, BlockIndex> model;
    std::map<BlockIndex, std::uint64_t> hash_of;
    const auto random_hash = [&] { return (kTable - 3 + random() % 6) % kTable + kTable * (random() % 3); };
    for (int step = 0; step < 60'000; ++step) {
        const auto block = static_cast<BlockIndex>(random() % kBlocks);
        if (const auto filed = hash_of.find(block); filed != hash_of.end()) {
            index.erase(filed->second, block);
            const auto [first, last] = model.equal_range(filed->second);
            model.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
            hash_of.erase(filed);
        } else {
            const std::uint64_t hash = random_hash();
            index.insert(hash, block);
            model.emplace(hash, block);
            hash_of.emplace(block, hash);
        }
        const std::uint64_t asked = random_hash();
        std::set<BlockIndex> expected;
        for (auto [at, last] = model.equal_range(asked); at != last; ++at) {
            expected.insert(at->second);
        }
        ASSERT_EQ(filed_under(index, asked), expected) << "step " << step << ", hash " << asked;
    }
}

}  // namespace
}  // namespace kvfix
