// EvictionQueue: the order in which blocks go, and parents that wait beside it for their children.
#include "core/eviction_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "tests/block_numbers.h"

namespace kvfix {
namespace {

using testing::operator""_b;

constexpr auto kNoParents = [](BlockIndex) { return false; };
constexpr auto kAllParents = [](BlockIndex) { return true; };

std::vector<BlockIndex> drained(EvictionQueue& queue) {
    std::vector<BlockIndex> order;
    for (BlockIndex victim = queue.victim(kNoParents); victim != kNone; victim = queue.victim(kNoParents)) {
        order.push_back(victim);
        queue.remove(victim);
    }
    return order;
}

TEST(EvictionQueue, AnEmptyQueueHasNoVictim) {
    EvictionQueue queue(4);
    EXPECT_EQ(queue.victim(kNoParents), kNone);
    EXPECT_EQ(queue.size(), 0U);
}

TEST(EvictionQueue, TheLowestPriorityGoesFirst) {
    EvictionQueue queue(8);
    const std::vector<Priority> priorities{35, 100, 0, 64, 63};
    for (std::uint32_t at = 0; at < priorities.size(); ++at) {
        queue.push(BlockIndex{at}, priorities[at]);
    }
    EXPECT_EQ(drained(queue), (std::vector<BlockIndex>{2_b, 0_b, 4_b, 3_b, 1_b}));
}

TEST(EvictionQueue, WithinAPriorityTheLongestQueuedGoesFirst) {
    EvictionQueue queue(8);
    for (const BlockIndex block : {3_b, 1_b, 2_b}) {
        queue.push(block, kPriorityDefault);
    }
    queue.remove(3_b);
    queue.push(3_b, kPriorityDefault);
    EXPECT_EQ(drained(queue), (std::vector<BlockIndex>{1_b, 2_b, 3_b}));
}

TEST(EvictionQueue, AParentWaitsWhateverItsPriority) {
    EvictionQueue queue(4);
    queue.push(0_b, 0);
    queue.push(1_b, 100);
    EXPECT_EQ(queue.victim([](BlockIndex block) { return block == 0_b; }), 1_b);
}

TEST(EvictionQueue, AmongParentsAloneTheUsualOrderHolds) {
    EvictionQueue queue(4);
    queue.push(2_b, 50);
    queue.push(1_b, 40);
    queue.push(0_b, 40);
    EXPECT_EQ(queue.victim(kAllParents), 1_b);
}

TEST(EvictionQueue, ABlockThatHasLostItsLastChildTakesItsOldTurn) {
    EvictionQueue queue(4);
    queue.push(0_b, 35);
    queue.push(1_b, 35);
    queue.push(2_b, 35);
    ASSERT_EQ(queue.victim([](BlockIndex block) { return block != 2_b; }), 2_b);  // parks 0 and 1
    queue.unpark(1_b);
    EXPECT_EQ(queue.victim(kNoParents), 1_b);
    queue.unpark(0_b);
    EXPECT_EQ(drained(queue), (std::vector<BlockIndex>{0_b, 1_b, 2_b}));
}

TEST(EvictionQueue, UnparkingABlockThatIsNotParkedChangesNothing) {
    EvictionQueue queue(4);
    queue.push(1_b, 35);
    queue.push(0_b, 35);
    queue.unpark(0_b);
    queue.unpark(3_b);
    EXPECT_FALSE(queue.contains(3_b));
    EXPECT_EQ(drained(queue), (std::vector<BlockIndex>{1_b, 0_b}));
}

TEST(EvictionQueue, EnteringTwiceOrLeavingWhatIsNotThereIsAViolation) {
    EvictionQueue queue(4);
    queue.push(0_b, 35);
    EXPECT_THROW(queue.push(0_b, 35), InvariantViolation);
    EXPECT_THROW(queue.remove(1_b), InvariantViolation);
}

// The queue's promises, kept in a list that is searched from end to end.
class NaiveQueue {
  public:
    void push(BlockIndex block, Priority priority) { entries_.push_back({priority, next_++, block}); }
    void remove(BlockIndex block) {
        std::erase_if(entries_, [&](const Entry& entry) { return std::get<2>(entry) == block; });
    }
    bool contains(BlockIndex block) const {
        return std::ranges::any_of(entries_, [&](const Entry& entry) { return std::get<2>(entry) == block; });
    }
    std::size_t size() const { return entries_.size(); }
    BlockIndex victim(const std::vector<bool>& is_parent) const {
        std::optional<Entry> best;
        std::optional<Entry> best_leaf;
        for (const Entry& entry : entries_) {
            best = best ? std::min(*best, entry) : entry;
            if (!is_parent[number(std::get<2>(entry))]) {
                best_leaf = best_leaf ? std::min(*best_leaf, entry) : entry;
            }
        }
        return best_leaf ? std::get<2>(*best_leaf) : best ? std::get<2>(*best) : kNone;
    }
    std::vector<BlockIndex> order() const {
        std::vector<Entry> sorted = entries_;
        std::ranges::sort(sorted);
        std::vector<BlockIndex> blocks;
        for (const Entry& entry : sorted) {
            blocks.push_back(std::get<2>(entry));
        }
        return blocks;
    }

  private:
    using Entry = std::tuple<Priority, std::uint64_t, BlockIndex>;  // compares in the order in which blocks go
    std::vector<Entry> entries_;
    std::uint64_t next_ = 0;
};

void expect_same_order(const EvictionQueue& queue, const NaiveQueue& model) {
    std::vector<BlockIndex> order;
    queue.for_each([&](BlockIndex block, Priority) { order.push_back(block); });
    EXPECT_EQ(order, model.order());
}

TEST(EvictionQueue, AgreesWithANaiveQueueOverRandomOperations) {
    constexpr std::uint32_t kBlocks = 24;
    constexpr Priority kPriorities[] = {0, 1, 35, 63, 64, 65, 99, 100};
    std::mt19937_64 random(20);
    EvictionQueue queue(kBlocks);
    NaiveQueue model;
    std::vector<bool> is_parent(kBlocks, false);
    for (int step = 0; step < 40'000; ++step) {
        const auto block = static_cast<BlockIndex>(random() % kBlocks);
        switch (random() % 4) {
            case 0:  // in, out, or a change of priority
            case 1:
                if (queue.contains(block)) {
                    queue.remove(block);
                    model.remove(block);
                }
                if (random() % 3 != 0) {
                    const Priority priority = kPriorities[random() % std::size(kPriorities)];
                    queue.push(block, priority);
                    model.push(block, priority);
                }
                break;
            case 2:
                is_parent[number(block)] = !is_parent[number(block)];
                if (!is_parent[number(block)]) {
                    queue.unpark(block);
                }
                break;
            default:
                ASSERT_EQ(queue.victim([&](BlockIndex at) { return is_parent[number(at)]; }), model.victim(is_parent))
                    << "step " << step;
        }
        ASSERT_EQ(queue.size(), model.size());
        ASSERT_EQ(queue.contains(block), model.contains(block));
        if (step % 64 == 0) {
            expect_same_order(queue, model);
        }
    }
}

}  // namespace
}  // namespace kvfix
