// ReuseTree: identity by parent and content, the best prefix among many children, and roots that do not pile up.
#include "core/reuse_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

namespace kvfix {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::uint32_t kTokensPerBlock = 4;

class ReuseTreeTest : public testing::Test {
  protected:
    explicit ReuseTreeTest(std::uint32_t hash_bits = kBlockHashBits)
        : store(256, 0, kTokensPerBlock), tree(store, hash_bits, {1, 0}) {}

    BlockIndex add(ParentRef parent, const Tokens& tokens, const std::string& extras = "") {
        const BlockIndex block = store.acquire();
        std::ranges::copy(tokens, store.tokens(block).begin());
        store[block].num_tokens = static_cast<std::uint16_t>(tokens.size());
        store.set_extras(block, extras);
        store[block].slot[kPrimary] = store.take_slot(kPrimary);
        store[block].key = tree.child_key(tree.key_of(parent), {tokens, extras});
        tree.add(block, parent);
        return block;
    }
    ParentRef remove(BlockIndex block) {
        const ParentRef parent = tree.remove(block);
        store.give_slot(kPrimary, store[block].slot[kPrimary]);
        store[block].slot[kPrimary] = kNone;
        store.release(block);
        return parent;
    }
    BlockIndex find(ParentRef parent, const Tokens& tokens, const std::string& extras = "") const {
        return tree.find_child(parent, tree.child_key(tree.key_of(parent), {tokens, extras}), {tokens, extras});
    }
    ParentRef root(const std::string& identity = "") { return tree.open_root(identity); }

    BlockStore store;
    ReuseTree tree;
};

class CollidingReuseTreeTest : public ReuseTreeTest {
  protected:
    CollidingReuseTreeTest() : ReuseTreeTest(1) {}
};

TEST_F(ReuseTreeTest, FindsAChildByItsWholeContent) {
    const BlockIndex block = add(root(), {1, 2, 3, 4}, "image");
    EXPECT_EQ(find(root(), {1, 2, 3, 4}, "image"), block);
    EXPECT_EQ(find(root(), {1, 2, 3, 4}), kNone);
    EXPECT_EQ(find(root(), {1, 2, 3, 5}, "image"), kNone);
    EXPECT_EQ(find(block, {1, 2, 3, 4}, "image"), kNone);
}

TEST_F(ReuseTreeTest, EqualContentBelowDifferentParentsStaysApart) {
    const BlockIndex salted = add(root("Ssalt"), {1, 2, 3, 4});
    const BlockIndex plain = add(root(), {1, 2, 3, 4});
    const BlockIndex below = add(plain, {1, 2, 3, 4});
    EXPECT_EQ(find(root("Ssalt"), {1, 2, 3, 4}), salted);
    EXPECT_EQ(find(root(), {1, 2, 3, 4}), plain);
    EXPECT_EQ(find(plain, {1, 2, 3, 4}), below);
}

TEST_F(CollidingReuseTreeTest, EqualHashesNeverMergeDifferentContent) {
    std::vector<BlockIndex> blocks;
    for (TokenId token = 0; token < 40; ++token) {
        blocks.push_back(add(root(), {token, 2, 3, 4}));
    }
    for (TokenId token = 0; token < 40; ++token) {
        EXPECT_EQ(find(root(), {token, 2, 3, 4}), blocks[static_cast<std::size_t>(token)]);
    }
    EXPECT_EQ(find(root(), {40, 2, 3, 4}), kNone);
}

TEST_F(ReuseTreeTest, TheLongestCommonPrefixWins) {
    add(root(), {1, 9, 9, 9});
    const BlockIndex best = add(root(), {1, 2, 9, 9});
    add(root(), {5, 2, 3, 4});
    const Tokens query{1, 2, 3, 4};
    const ReuseTree::Beginning prefix = tree.best_prefix(root(), {query, ""});
    EXPECT_EQ(prefix.block, best);
    EXPECT_EQ(prefix.tokens, 2U);
}

TEST_F(ReuseTreeTest, TiesGoToTheSmallestContentAShorterPrefixFirst) {
    add(root(), {1, 2, 9, 9});
    add(root(), {1, 2, 8, 9});
    const BlockIndex shortest = add(root(), {1, 2});
    const Tokens query{1, 2, 3, 4};
    EXPECT_EQ(tree.best_prefix(root(), {query, ""}).block, shortest);
    remove(shortest);
    EXPECT_EQ(tree.best_prefix(root(), {query, ""}).block, find(root(), {1, 2, 8, 9}));
}

TEST_F(ReuseTreeTest, NoCommonTokenOrOtherExtrasIsNoPrefix) {
    add(root(), {1, 2, 3, 4}, "image");
    add(root(), {7, 2, 3, 4});
    const Tokens query{1, 2, 3, 4};
    EXPECT_EQ(tree.best_prefix(root(), {query, ""}).block, kNone);
    EXPECT_EQ(tree.best_prefix(root(), {query, "other"}).block, kNone);
    EXPECT_EQ(tree.best_prefix(root(), {query, "image"}).tokens, 4U);
}

TEST_F(ReuseTreeTest, AParentCountsItsChildrenWithAPrimarySlot) {
    const BlockIndex parent = add(root(), {1, 2, 3, 4});
    const BlockIndex child = add(parent, {1, 2, 3, 4});
    add(parent, {5, 6});
    EXPECT_EQ(store[parent].children_primary, 2U);
    EXPECT_EQ(remove(child), parent);
    EXPECT_EQ(store[parent].children_primary, 1U);
}

TEST_F(ReuseTreeTest, ADepartureShowsInTheGeneration) {
    const BlockIndex block = add(root(), {1, 2, 3, 4});
    const std::uint32_t before = store[block].generation;
    remove(block);
    EXPECT_NE(store[block].generation, before) << "a cursor that remembers the block must see that it has gone";
}

TEST_F(ReuseTreeTest, DescendantsComeParentsBeforeChildren) {
    std::mt19937_64 random(5);
    const BlockIndex top = add(root(), {0, 0, 0, 0});
    std::vector<BlockIndex> nodes{top};
    for (TokenId token = 1; token < 60; ++token) {
        nodes.push_back(add(nodes[random() % nodes.size()], {token, token, token, token}));
    }
    add(root(), {9, 9, 9, 9});
    std::vector<BlockIndex> found;
    tree.collect_descendants(top, found);
    EXPECT_EQ(std::set<BlockIndex>(found.begin(), found.end()), std::set<BlockIndex>(nodes.begin() + 1, nodes.end()));
    EXPECT_EQ(found.size(), nodes.size() - 1);
    std::set<BlockIndex> seen{top};
    for (const BlockIndex block : found) {
        EXPECT_TRUE(seen.contains(store[block].parent.block()))
            << "block " << number(block) << " comes before its parent";
        seen.insert(block);
    }
}

TEST_F(ReuseTreeTest, ARootLivesAsLongAsItHasChildren) {
    const BlockIndex first = add(root("Sa"), {1, 2, 3, 4});
    const BlockIndex second = add(root("Sa"), {5, 6, 7, 8});
    remove(first);
    EXPECT_NE(tree.find_root(std::string("Sa")), kNone);
    remove(second);
    EXPECT_EQ(tree.find_root(std::string("Sa")), kNone);
}

TEST_F(ReuseTreeTest, ManySaltsOneAfterAnotherNeedOneRoot) {
    const ParentRef first = root("S");
    remove(add(first, {1, 2, 3, 4}));
    for (int salt = 0; salt < 20'000; ++salt) {
        const ParentRef ref = root("S" + std::to_string(salt));
        ASSERT_EQ(ref, first) << "the root of a salt that has gone is not used again";
        remove(add(ref, {1, 2, 3, 4}));
    }
}

TEST_F(ReuseTreeTest, EnteringOrLeavingTwiceIsAViolation) {
    const BlockIndex block = add(root(), {1, 2, 3, 4});
    EXPECT_THROW(tree.add(block, root()), InvariantViolation);
    tree.remove(block);
    EXPECT_THROW(tree.remove(block), InvariantViolation);
}

// A child as the naive search sees it.
struct Child {
    BlockIndex block;
    Tokens tokens;
    std::string extras;
};

ReuseTree::Beginning naive_best(const std::vector<Child>& children, const BlockContent& query) {
    ReuseTree::Beginning best;
    const Tokens* smallest = nullptr;
    for (const Child& child : children) {
        const auto [at, end] = std::ranges::mismatch(child.tokens, query.tokens);
        const auto common = static_cast<std::uint32_t>(at - child.tokens.begin());
        if (child.extras != query.extras || common == 0 || common < best.tokens) {
            continue;
        }
        if (common > best.tokens || child.tokens < *smallest) {
            best = {child.block, common};
            smallest = &child.tokens;
        }
    }
    return best;
}

TEST_F(ReuseTreeTest, BestPrefixAgreesWithANaiveSearchOverRandomChildren) {
    std::mt19937_64 random(8);
    const std::array<std::string, 3> extras{"", "a", "ab"};
    const auto random_tokens = [&] {
        Tokens tokens(1 + random() % kTokensPerBlock);
        std::ranges::generate(tokens, [&] { return static_cast<TokenId>(random() % 3); });
        return tokens;
    };
    const BlockIndex parent = add(root(), {0, 0, 0, 0});
    std::vector<Child> children;
    for (int step = 0; step < 30'000; ++step) {
        const Tokens tokens = random_tokens();
        const std::string& extra = extras[random() % extras.size()];
        const auto same = std::ranges::find_if(children, [&](const Child& child) {
            return std::tie(child.tokens, child.extras) == std::tie(tokens, extra);
        });
        if (same == children.end()) {
            children.push_back({add(parent, tokens, extra), tokens, extra});
        } else {
            remove(same->block);
            children.erase(same);
        }
        const Tokens query = random_tokens();
        const BlockContent wanted{query, extras[random() % extras.size()]};
        const ReuseTree::Beginning expected = naive_best(children, wanted);
        const ReuseTree::Beginning found = tree.best_prefix(parent, wanted);
        ASSERT_EQ(found.tokens, expected.tokens) << "step " << step;
        ASSERT_EQ(found.block, expected.block) << "step " << step;
        ASSERT_EQ(store[parent].children_primary, children.size());
    }
}

}  // namespace
}  // namespace kvfix
