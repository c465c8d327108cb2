// Rounds over slots: each is drawn once in a round, and rounds end.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "canary/rounds.h"

namespace kvfix::canary {
namespace {

using Slots = std::vector<Slot>;

bool always(Slot /*slot*/) { return true; }

void add(Rounds& rounds, Slot begin, Slot end) {
    for (Slot slot = begin; slot < end; ++slot) {
        rounds.add(slot);
    }
}

Slots a_round_of(Rounds& rounds, std::size_t slots) {
    Slots order;
    while (order.size() < slots) {
        const Slots drawn = rounds.draw(3, always);
        order.insert(order.end(), drawn.begin(), drawn.end());
    }
    return order;
}

TEST(CanaryRounds, EachSlotOnceAndEachRoundInAnotherOrder) {
    Rounds rounds(1);
    add(rounds, 0, 40);
    add(rounds, 0, 40);
    Slots all(40);
    std::iota(all.begin(), all.end(), 0);
    std::set<Slots> orders;
    for (std::size_t round = 1; round < 6; ++round) {
        Slots order = a_round_of(rounds, 40);
        orders.insert(order);
        std::ranges::sort(order);
        EXPECT_EQ(order, all);
        EXPECT_EQ(orders.size(), round);
    }
}

TEST(CanaryRounds, EachSlotIsDrawnAgainHoweverManyComeMeanwhile) {
    Rounds rounds(1);
    add(rounds, 0, 40);
    std::map<Slot, int> drawn;
    for (Slot step = 0; step < 75; ++step) {  // of which three rounds take 14, 23 and 38
        for (const Slot slot : rounds.draw(3, always)) {
            ++drawn[slot];
        }
        add(rounds, 40 + 2 * step, 42 + 2 * step);
    }
    for (Slot slot = 0; slot < 40; ++slot) {
        EXPECT_EQ(drawn[slot], 3) << slot;
    }
}

TEST(CanaryRounds, SlotsThatAreNotWantedLeaveTheRoundUntilTheyAreAddedAgain) {
    Rounds rounds(1);
    add(rounds, 0, 1000);
    std::size_t asked = 0;
    const auto only_the_last = [&](Slot slot) {
        ++asked;
        return slot == 999;
    };
    Slots found;
    while (found.empty()) {
        asked = 0;
        found = rounds.draw(2, only_the_last);
        ASSERT_LE(asked, 2 * kStalePerSlotMax) << "a call pays for a few, not for all";
    }
    do {
        asked = 0;
        rounds.draw(2, only_the_last);
    } while (asked != 1);  // until no other slot is left
    rounds.add(5);
    std::set<Slot> left;
    for (int draw = 0; draw < 3; ++draw) {
        const Slots drawn = rounds.draw(2, always);
        left.insert(drawn.begin(), drawn.end());
    }
    EXPECT_EQ(left, (std::set<Slot>{5, 999}));
}

}  // namespace
}  // namespace kvfix::canary
