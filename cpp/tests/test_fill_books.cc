// The canary's books: no false finding whatever a right cache does, and what they say of single cases. Each exception
// that keeps a finding from being false has a mutant (tests/mutants), which the random cache notices.
#include "canary/fill_books.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/errors.h"
#include "tests/canary_world.h"

namespace kvfix::canary {
namespace {

constexpr std::uint32_t kSize = 4;
constexpr std::uint32_t kLayers = 2;
using Slots = std::vector<Slot>;
using Sendings = std::vector<std::vector<std::uint64_t>>;

const std::set<std::string> kEverything = {"filled",  "reused", "returned", "freed",      "live",    "offload",
                                           "onboard", "copy",   "loads",    "taken over", "repeats", "relocated",
                                           "rewound", "again",  "cyclic",   "slots first"};

TEST(FillBooksWorld, ACacheThatDoesEverythingRightGivesNoFinding) {
    constexpr int kSeeds = 60;
    constexpr int kSteps = 200;
    constexpr int kOften = 20;
    std::map<std::string, int> done;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        testing::CanaryWorld world(seed);
        world.play(kSteps);
        ASSERT_TRUE(world.findings.empty()) << "seed " << seed << ": " << world.findings.front();
        for (const auto& [each, count] : world.done) {
            done[each] += count;
        }
    }
    std::set<std::string> often;
    for (const auto& [each, count] : done) {
        if (count > kOften) {
            often.insert(each);
        }
    }
    EXPECT_EQ(often, kEverything);
}

class FillBooksTest : public ::testing::Test {
  protected:
    static BooksConfig config(bool knows_all = true) {
        return {.tokens_per_block = kSize,
                .layers = kLayers,
                .knows_all = knows_all,
                .looks = {.due = 64, .of_step = 64, .live = 0},
                .seed = 1};
    }
    // A step that writes these positions, all of which are kept. Returns what is looked at behind it.
    Slots run(RequestId request, const Slots& slots, std::uint64_t begin, std::uint64_t end) {
        return run(request, slots, begin, end, end);
    }
    Slots run(RequestId request, const Slots& slots, std::uint64_t begin, std::uint64_t end, std::uint64_t accepted) {
        const auto first = slots.begin() + static_cast<std::ptrdiff_t>(begin / kSize);
        return books.step(++steps, std::vector{Write{request, Slots(first, slots.end()), begin, end, accepted}}, 64);
    }
    Slots looked() { return books.step(++steps, {}, 64); }
    // The digests of a look at one block.
    std::vector<Changed> arrive(std::uint64_t first, std::uint64_t second) {
        return books.arrived(Sendings(1, {first, second}));
    }

    std::uint64_t steps = 0;
    FillBooks books{config()};
};

TEST_F(FillBooksTest, OneLayerThatDiffersIsNamedOnceAndAgainWhenItHasBeenRight) {
    ASSERT_EQ(run(1, {5}, 0, kSize), Slots{5});
    EXPECT_TRUE(arrive(7, 8).empty());
    for (const RequestId reader : {2, 3, 4, 5}) {
        books.admitted(reader, {5}, kSize, false);
        ASSERT_EQ(looked(), Slots{5});
        const auto changed = reader == 4 ? arrive(7, 8) : arrive(7, 9);
        ASSERT_EQ(changed.size(), reader == 2 || reader == 5 ? 1U : 0U);
        EXPECT_EQ(books.fill_at(5)->has_changed, reader != 4);
        if (reader == 2) {
            EXPECT_EQ(changed[0].layers, std::vector<std::uint32_t>{1});
            EXPECT_EQ(changed[0].occasion, Occasion::reused);
            EXPECT_EQ(changed[0].filler, Requester(1));
            EXPECT_EQ(changed[0].reader, Requester(2));
            EXPECT_EQ(changed[0].right_at, 1U);
            EXPECT_EQ(changed[0].wrong_at, 2U);
        }
    }
}

TEST_F(FillBooksTest, ABlockThatIsGivenAwayIsComparedByWhatItWasWhenItWasLookedAt) {
    run(1, {5}, 0, kSize);
    arrive(7, 8);
    ASSERT_EQ(books.released(1, 64), Slots{5});
    books.admitted(2, {5}, 0, false);
    const auto changed = arrive(7, 9);
    ASSERT_EQ(changed.size(), 1U);
    EXPECT_EQ(changed[0].occasion, Occasion::freed);
    EXPECT_EQ(changed[0].filler, Requester(1));
}

TEST_F(FillBooksTest, DatesHoldBeyondTheBitsThatAreKept) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 32;
    steps = kFar - 2;
    run(1, {5}, 0, kSize);
    arrive(7, 8);
    steps = kFar + 1;
    books.admitted(2, {5}, kSize, false);
    looked();
    const auto changed = arrive(0, 0);
    ASSERT_EQ(changed.size(), 1U);
    EXPECT_EQ(changed[0].right_at, kFar - 1);
    EXPECT_EQ(changed[0].wrong_at, kFar + 2);
}

TEST_F(FillBooksTest, ABlockThatACancelledPromptHasNotReachedIsSaidToBeUnfilled) {
    run(1, {5, 6, 7}, 0, 12);
    EXPECT_EQ(books.released(1, 64), (Slots{5, 6, 7}));
    EXPECT_TRUE(books.admitted(2, {5, 6, 7}, 0, false).empty());
    run(2, {5, 6, 7}, 0, 6);  // cancelled in the middle, and offered whole
    books.released(2, 64);
    const auto unfilled = books.admitted(3, {5, 6, 7, 8}, 12, false);
    ASSERT_EQ(unfilled.size(), 2U) << "the last owner's values do not count";
    EXPECT_EQ(unfilled[0].slot, 6);
    EXPECT_EQ(unfilled[1].slot, 7);
    EXPECT_EQ(unfilled[0].filler, Requester(2));
    EXPECT_EQ(unfilled[0].reader, 3U);
    EXPECT_EQ(looked(), Slots{5});
    EXPECT_TRUE(books.admitted(4, {5, 6, 7, 9}, 12, false).empty()) << "it is said once";
}

TEST_F(FillBooksTest, ABlockIsCompleteOnceItsLastPositionIsKeptForCertain) {
    EXPECT_TRUE(run(1, {5, 6}, 0, 7, 3).empty());
    EXPECT_FALSE(books.fill_at(5)->is_complete);
    EXPECT_EQ(run(1, {5, 6}, 3, 7, 4), Slots{5});
    EXPECT_TRUE(books.fill_at(5)->is_complete);
}

TEST_F(FillBooksTest, AWholeBlockThatIsWrittenOverACopyIsAnotherFill) {
    run(1, {5}, 0, kSize);
    books.grown(1, Slots{6});
    books.moved(Copy::within_device, 5, 6, kSize);
    EXPECT_EQ(books.fill_at(6), books.fill_at(5));
    looked();
    books.loaded(1, kSize, 2 * kSize);
    EXPECT_EQ(looked(), Slots{6});
    EXPECT_NE(books.fill_at(6), books.fill_at(5));
    books.admitted(2, {5, 7}, kSize, false);
    books.moved(Copy::within_device, 6, 7, kSize - 1);
    books.loaded(2, kSize, 2 * kSize);
    EXPECT_EQ(looked(), (Slots{5, 7}));
    EXPECT_EQ(books.fill_at(7)->by(), Requester(2));
}

TEST_F(FillBooksTest, ADigestTravelsWithItsBlock) {
    run(1, {5}, 0, kSize);
    arrive(7, 8);
    books.moved(Copy::offload, 5, 2, kSize);
    EXPECT_TRUE(looked().empty());
    books.admitted(2, {5}, 0, false);
    books.moved(Copy::onboard, 2, 9, kSize);
    EXPECT_EQ(looked(), Slots{9});
    EXPECT_FALSE(books.fill_at(5)->is_known);
    const auto changed = arrive(7, 9);
    ASSERT_EQ(changed.size(), 1U);
    EXPECT_EQ(changed[0].occasion, Occasion::returned);
}

// Also where it has given back what it took, or has computed it again.
TEST_F(FillBooksTest, WhatARequestHasFilledIsLookedAtWhenItEndsAndWhatItTookIsNot) {
    run(1, {5, 6}, 0, 2 * kSize);
    books.admitted(2, {5, 6}, 2 * kSize, false);
    run(2, {5, 6, 7}, 2 * kSize, 3 * kSize);
    EXPECT_EQ(books.released(2, 64), Slots{7});
    books.admitted(3, {5, 6}, 2 * kSize, false);
    books.shrunk(3, 1);
    books.grown(3, Slots{8});
    books.loaded(3, kSize, 2 * kSize);
    EXPECT_EQ(books.released(3, 64), Slots{8});
    books.admitted(4, {5, 6}, 2 * kSize, false);
    run(4, {5, 9}, kSize, 2 * kSize);
    EXPECT_EQ(books.released(4, 64), Slots{9});
}

// Beside a tier that nobody hears of. One of them that is known keeps what is known of it.
TEST_F(FillBooksTest, AWholePromptOfBlocksThatNobodyKnowsIsTakenAsItIs) {
    FillBooks beside(config(false));
    EXPECT_TRUE(beside.admitted(1, {5, 6}, 2 * kSize, false).empty());
    EXPECT_EQ(beside.step(1, {}, 64), (Slots{5, 6}));
    EXPECT_TRUE(beside.fill_at(5)->is_complete);
    const Fill* known = beside.fill_at(6);
    EXPECT_TRUE(beside.admitted(2, {7, 6}, 2 * kSize, false).empty());
    EXPECT_EQ(beside.step(2, {}, 64), (Slots{7, 6}));
    EXPECT_EQ(beside.fill_at(6), known);
}

TEST_F(FillBooksTest, ARequestThatComesBackFindsItsFillsInOtherSlots) {
    run(1, {5, 6, 7}, 0, 3 * kSize);
    books.left(1, 2);
    books.admitted(2, {5, 6, 7}, 0, false);
    books.came_back(1, {8, 9, 10, 11});
    EXPECT_EQ(looked(), (Slots{8, 9})) << "of the third it was not known where it was";
    EXPECT_EQ(books.fill_at(10), nullptr);
    EXPECT_EQ(books.fill_at(8)->by(), Requester(1));
    EXPECT_FALSE(books.fill_at(11)->is_complete);
    EXPECT_THROW(books.came_back(1, {8}), std::invalid_argument);
}

TEST_F(FillBooksTest, WhatNobodyHasIsForgottenAndNotBefore) {
    run(1, {5, 6}, 0, 2 * kSize);
    books.hold(Slots{5, 6, kNowhere});
    books.admitted(2, {5}, kSize, false);
    books.hold(Slots{5});
    books.let_go(Slots{5, 6, kNowhere});
    EXPECT_NE(books.fill_at(5), nullptr);
    EXPECT_EQ(books.fill_at(6), nullptr);
    books.let_go(Slots{5});
    EXPECT_EQ(books.fill_at(5), nullptr);
    books.went_on(std::vector{Progress{2, kSize, kSize, {7}}}, true);
    books.let_go(Slots{7});
    EXPECT_EQ(books.fill_at(7), nullptr);
    EXPECT_THROW(books.let_go(Slots{5}), std::invalid_argument);
}

TEST_F(FillBooksTest, WhatNobodyHasIsKeptByItsNumberAndComesBackInAnySlot) {
    run(1, {5, 6}, 0, 2 * kSize);
    looked();
    books.hold(Slots{5, 6}, Slots{25, 26});
    books.released(1, 64);
    books.let_go(Slots{5, 6}, Slots{25, 26});
    EXPECT_EQ(books.fill_at(5), nullptr);
    books.hold(Slots{6, 9}, Slots{25, 27});
    ASSERT_NE(books.fill_at(6), nullptr);
    EXPECT_EQ(books.fill_at(6)->by(), 1U);
    EXPECT_EQ(books.fill_at(9), nullptr);
    EXPECT_TRUE(books.admitted(2, {6, 9}, kSize, false).empty());
    EXPECT_EQ(books.slots_of(2).size(), 2U);
    books.let_go(Slots{6, 9});
    books.hold(Slots{7}, Slots{25});
    EXPECT_EQ(books.fill_at(7), nullptr) << "it was let go without its number";
    EXPECT_THROW(books.hold(Slots{7, 8}, Slots{25}), std::invalid_argument);
}

TEST_F(FillBooksTest, OneThatIsAwayOwnsNoSlotsWhenItEnds) {
    run(1, {5}, 0, kSize);
    books.left(1, 1);
    EXPECT_TRUE(books.released(1, 64).empty());
    EXPECT_THROW(books.slots_of(1), UnknownRequest);
}

TEST_F(FillBooksTest, WhatNobodyRefersToTakesNoMemory) {
    for (RequestId request = 1; request < 2000; ++request) {
        run(request, {5, 6}, 0, 2 * kSize);
        books.arrived(Sendings(1, std::vector<std::uint64_t>(2 * kLayers)));
        books.left(request, 2);
        books.came_back(request, {6, 5});
        books.lost(request);
        ASSERT_LE(books.fills(), 4U);  // looks at the last ones may wait
    }
    books.forget(Slots{5, 6});
    looked();
    EXPECT_EQ(books.fills(), 0U);
}

TEST_F(FillBooksTest, WhatCannotBeIsRefused) {
    EXPECT_THROW(books.loaded(77, 0, 4), UnknownRequest);
    books.admitted(1, {5}, 0, false);
    EXPECT_THROW(books.loaded(1, 0, 2 * kSize), std::invalid_argument);
    EXPECT_THROW(books.replaced(1, 1, 5), std::invalid_argument);
    EXPECT_THROW(run(1, {5, 6, 7}, 2 * kSize, 3 * kSize), std::invalid_argument);
    EXPECT_THROW(books.grown(1, Slots{kSlotsMax}), std::invalid_argument);
    EXPECT_THROW(arrive(7, 8), std::invalid_argument);
    BooksConfig wide = config();
    wide.tokens_per_block = kTokensPerBlockMax + 1;
    EXPECT_THROW(FillBooks{wide}, std::invalid_argument);
}

}  // namespace
}  // namespace kvfix::canary
