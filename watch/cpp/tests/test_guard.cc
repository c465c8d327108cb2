// The state machine behind the pages: which protection they have, and what a touch means.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "fake_pages.h"

namespace hostrace {
namespace {

TEST_F(GuardTest, WhatTheDeviceReadsMayBeReadAndNotWritten) {
    ASSERT_TRUE(guard_->add(use(kBase + 100, 5000, false)));
    EXPECT_EQ(pages_.of(kBase), Protection::read_only);
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::read_only);
    EXPECT_EQ(guard_->touch(kBase + 200, 1, Access::read).answer, Answer::nothing);
    const Verdict verdict = guard_->touch(kBase + 200, 1, Access::write);
    EXPECT_EQ(verdict.answer, Answer::race);
    EXPECT_EQ(verdict.at, kBase + 200);
    EXPECT_EQ(verdict.use.shape.begin, kBase + 100);
}

TEST_F(GuardTest, WhatTheDeviceWritesMayNotBeTouched) {
    ASSERT_TRUE(guard_->add(use(kBase, kPage, true)));
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
    EXPECT_EQ(guard_->touch(kBase + 7, 1, Access::read).answer, Answer::race);
}

TEST_F(GuardTest, ARaceIsReportedOnceAndTheTouchGoesOn) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::race);
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_NE(guard_->touch(kBase, 1, Access::write).answer, Answer::race);
}

TEST_F(GuardTest, WhatHasEndedIsNoRace) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, true)));
    finish_all();
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::opened);
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_TRUE(guard_->idle());
    EXPECT_EQ(counts_.faults_stale.load(), 1U);
}

// Between the look at a use and its grade the device goes on, and so do other threads.
TEST_F(GuardTest, AUseThatEndsWhileItIsLookedAtIsGradedByWhatIsKnownThen) {
    Seen seen;
    Use copy = use(kBase, 8, true);
    copy.seen = &seen;
    copy.order = 1;
    Use kernel = copy;
    kernel.kind = Kind::kernel;
    kernel.certain = false;
    EXPECT_EQ(copy.grade(), Grade::race);
    EXPECT_EQ(kernel.grade(), Grade::possible);
    finish(copy.ends.sequence);
    EXPECT_EQ(copy.grade(), Grade::unordered);
    EXPECT_EQ(kernel.grade(), Grade::possible) << "what it does with its memory is not known";
    seen.perhaps = 1;
    EXPECT_EQ(copy.grade(), Grade::possible);
    seen.perhaps = 0;
    seen.by_host = 1;
    EXPECT_EQ(copy.grade(), Grade::possible);
}

TEST_F(GuardTest, NumbersOfAStreamWrapAround) {
    sequence_ = ~std::uint32_t{0} - 1;
    flag_ = sequence_;
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    ASSERT_TRUE(guard_->add(use(kBase + kPage, 64, false)));
    ASSERT_TRUE(guard_->add(use(kBase + 2 * kPage, 64, false)));  // its number is 1
    finish(0);
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::open);
    EXPECT_EQ(pages_.of(kBase + 2 * kPage), Protection::read_only);
}

TEST_F(GuardTest, ANeighbourGoesThroughAndThePageIsProtectedAgain) {
    ASSERT_TRUE(guard_->add(use(kBase, 256, false)));
    const Verdict verdict = guard_->touch(kBase + 1000, 1, Access::write);
    ASSERT_EQ(verdict.answer, Answer::step);
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    guard_->close(verdict.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::read_only);
    EXPECT_EQ(guard_->touch(kBase + 255, 1, Access::write).answer, Answer::race);
}

TEST_F(GuardTest, TwoWhoStepInOnePageKeepItOpenUntilBothAreThrough) {
    ASSERT_TRUE(guard_->add(use(kBase, 256, false)));
    const Verdict first = guard_->touch(kBase + 1000, 1, Access::write);
    const Verdict second = guard_->touch(kBase + 2000, 1, Access::write);
    guard_->close(first.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    guard_->close(second.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::read_only);
}

TEST_F(GuardTest, AUseThatComesWhileAPageIsOpenIsProtectedBehindTheStep) {
    ASSERT_TRUE(guard_->add(use(kBase, 256, false)));
    const Verdict verdict = guard_->touch(kBase + 1000, 1, Access::write);
    ASSERT_TRUE(guard_->add(use(kBase + 512, 256, true)));
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    guard_->close(verdict.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
}

TEST_F(GuardTest, ACallOfTheKernelKeepsItsPagesOpenForWhatIsEnqueuedMeanwhile) {
    const Verdict waits = guard_->settle(kBase + 1000, 64, Access::write);
    ASSERT_EQ(waits.answer, Answer::step);
    ASSERT_TRUE(guard_->add(use(kBase, 256, true)));
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    guard_->close(waits.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
}

TEST_F(GuardTest, ACallThatReadsLeavesWhatTheDeviceReadsProtected) {
    const Verdict waits = guard_->settle(kBase + 1000, 64, Access::read);
    ASSERT_TRUE(guard_->add(use(kBase, 256, false)));
    ASSERT_TRUE(guard_->add(use(kBase + 256, 256, true)));
    EXPECT_EQ(pages_.of(kBase), Protection::read_only);
    guard_->close(waits.opening);
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
}

TEST_F(GuardTest, ACallIntoWhatIsInFlightIsARace) {
    ASSERT_TRUE(guard_->add(use(kBase, 256, false)));
    EXPECT_EQ(guard_->settle(kBase + 128, 64, Access::write).answer, Answer::race);
    EXPECT_TRUE(pages_.all_open());
}

TEST_F(GuardTest, PagesThatNoUseHasAreTheProgramsWhateverACallOpens) {
    ASSERT_TRUE(guard_->add(use(kBase + 2 * kPage, 64, true)));
    const int before = pages_.calls;
    const Verdict call = guard_->settle(kBase, 2 * kPage, Access::write);
    guard_->close(call.opening);
    EXPECT_EQ(pages_.calls, before);
}

TEST_F(GuardTest, MoreCallsThanThereIsRoomForOpenEverything) {
    std::vector<Opening> openings;
    for (std::size_t at = 0; at < Guard::kOpeningsMax + 2; ++at) {
        openings.push_back(guard_->settle(kBase + at * kPage, 64, Access::write).opening);
    }
    ASSERT_TRUE(guard_->add(use(kBase + 500 * kPage, 64, true)));
    EXPECT_TRUE(pages_.all_open());
    guard_->close(openings.back());
    openings.pop_back();
    EXPECT_TRUE(pages_.all_open());
    guard_->close(openings.back());
    EXPECT_EQ(pages_.of(kBase + 500 * kPage), Protection::closed);
}

TEST_F(GuardTest, PagesThatOthersHaveMemoryInAreNeverProtected) {
    Use registered = use(kBase + 100, 3 * kPage, true);
    registered.whole = pages_inside({registered.shape.begin, registered.shape.end()});
    ASSERT_TRUE(guard_->add(registered));
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::closed);
    EXPECT_EQ(pages_.of(kBase + 2 * kPage), Protection::closed);
    EXPECT_EQ(pages_.of(kBase + 3 * kPage), Protection::open);
    EXPECT_EQ(counts_.shared_pages.load(), 1U);
    finish_all();
    guard_->retire();
    EXPECT_TRUE(pages_.all_open());
}

// Nothing faults there, but what the C library is given is known.
TEST_F(GuardTest, ACallIntoWhatIsNotProtectedIsARaceAllTheSame) {
    Use registered = use(kBase + 100, 200, true);
    registered.whole = pages_inside({registered.shape.begin, registered.shape.end()});
    const int before = pages_.calls;
    ASSERT_TRUE(guard_->add(registered));
    const Verdict beside = guard_->settle(kBase, 100, Access::write);
    EXPECT_EQ(beside.answer, Answer::step);
    guard_->close(beside.opening);
    EXPECT_EQ(guard_->settle(kBase + 299, 1, Access::read).answer, Answer::race);
    EXPECT_EQ(pages_.calls, before);
    EXPECT_TRUE(guard_->idle());
}

TEST_F(GuardTest, BetweenTheRowsOfACopyIsNoRace) {
    Use rows = use(kBase, 200, false);
    rows.shape.pitch = 320;
    rows.shape.rows = 10;
    ASSERT_TRUE(guard_->add(rows));
    const Verdict between = guard_->touch(kBase + 3 * 320 + 250, 1, Access::write);
    EXPECT_EQ(between.answer, Answer::step);
    guard_->close(between.opening);
    const Verdict across = guard_->touch(kBase + 3 * 320 + 250, 100, Access::write);
    EXPECT_EQ(across.answer, Answer::race);
    EXPECT_EQ(across.at, kBase + 4 * 320);
}

TEST_F(GuardTest, ThePageKeepsTheStrongestOfWhatIsInFlight) {
    const Use reads = use(kBase, 64, false);
    const Use writes = use(kBase + 64, 64, true);
    ASSERT_TRUE(guard_->add(reads));
    ASSERT_TRUE(guard_->add(writes));
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
    finish(reads.ends.sequence);
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
    finish(writes.ends.sequence);
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase), Protection::open);
}

TEST_F(GuardTest, ABufferThatIsUsedAgainKeepsItsProtection) {
    ASSERT_TRUE(guard_->add(use(kBase, 3 * kPage, false)));
    finish_all();
    const int before = pages_.calls;
    ASSERT_TRUE(guard_->add(use(kBase, 3 * kPage, false)));
    EXPECT_EQ(pages_.calls, before);
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::race);
    EXPECT_TRUE(guard_->idle());
}

TEST_F(GuardTest, PagesSideBySideAreOpenedByOneCall) {
    for (const std::uintptr_t page : {3, 0, 2, 1}) {
        ASSERT_TRUE(guard_->add(use(kBase + page * kPage, 64, page == 1)));
    }
    finish_all();
    const int before = pages_.calls;
    guard_->retire();
    EXPECT_EQ(pages_.calls, before + 1);
    EXPECT_TRUE(pages_.all_open());
}

TEST_F(GuardTest, WhatIsStillInFlightAmongThemStaysProtected) {
    const Use first = use(kBase, 2 * kPage, false);
    ASSERT_TRUE(guard_->add(first));
    ASSERT_TRUE(guard_->add(use(kBase + kPage, 64, false)));
    ASSERT_TRUE(guard_->add(use(kBase + 2 * kPage, 64, true)));
    finish(first.ends.sequence);
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::read_only);
    EXPECT_EQ(pages_.of(kBase + 2 * kPage), Protection::closed);
}

TEST_F(GuardTest, MemoryThatIsGoneDoesNotKeepItsNeighboursProtected) {
    for (const std::uintptr_t page : {0, 1, 2}) {
        ASSERT_TRUE(guard_->add(use(kBase + page * kPage, 64, false)));
    }
    finish_all();
    pages_.hole = kBase + kPage + 1;
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_EQ(pages_.of(kBase + 2 * kPage), Protection::open);
}

TEST_F(GuardTest, HoldKeepsThePageUntilItIsReleased) {
    Guard holding(pages_, counts_, true);
    ASSERT_TRUE(holding.add(use(kBase, 64, false)));
    const Verdict first = holding.touch(kBase, 1, Access::write);
    ASSERT_EQ(first.answer, Answer::race);
    EXPECT_EQ(pages_.of(kBase), Protection::read_only);
    EXPECT_EQ(holding.touch(kBase + 1, 1, Access::write).answer, Answer::race);
    holding.release(first.use.id);
    EXPECT_EQ(pages_.of(kBase), Protection::open);
}

TEST_F(GuardTest, MemoryInUseThatGoesBackIsARaceAndIsForgotten) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    ASSERT_TRUE(guard_->add(use(kBase + kPage, 64, false)));
    ASSERT_TRUE(guard_->add(use(kBase + 8 * kPage, 64, false)));
    EXPECT_EQ(guard_->give_back(kBase, 2 * kPage).answer, Answer::race);
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::open);
    EXPECT_EQ(pages_.of(kBase + 8 * kPage), Protection::read_only);
    finish_all();
    EXPECT_NE(guard_->give_back(kBase + 8 * kPage, kPage).answer, Answer::race);
    EXPECT_TRUE(pages_.all_open());
}

TEST_F(GuardTest, PagesThatCannotBeProtectedAreNotWatched) {
    pages_.refuse = true;
    EXPECT_FALSE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(counts_.dropped.load(), 1U);
    EXPECT_TRUE(guard_->idle());
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::nothing);
}

TEST_F(GuardTest, ThereIsRoomAgainWhenUsesHaveEnded) {
    for (std::size_t at = 0; at < Guard::kUsesMax; ++at) {
        ASSERT_TRUE(guard_->add(use(kBase + at * kPage, 64, false)));
    }
    EXPECT_FALSE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(counts_.dropped.load(), 1U);
    finish_all();
    EXPECT_TRUE(guard_->add(use(kBase, 64, false)));
}

TEST_F(GuardTest, WithoutRoomForAStepThePageIsNoLongerWatched) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    for (std::size_t at = 0; at < Guard::kOpeningsMax; ++at) {
        ASSERT_EQ(guard_->touch(kBase + 100, 1, Access::write).answer, Answer::step);
    }
    EXPECT_EQ(guard_->touch(kBase + 100, 1, Access::write).answer, Answer::opened);
    EXPECT_TRUE(guard_->idle());
    EXPECT_EQ(counts_.dropped.load(), 1U);
}

TEST_F(GuardTest, MemoryOfOthersIsForeign) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(guard_->touch(kBase + 100 * kPage, 1, Access::write).answer, Answer::foreign);
}

// A thread may be in the middle of a call when the process begins to end, and another in a fault.
TEST_F(GuardTest, WhatEndsTakesNoUseAnyMore) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, true)));
    guard_->end();
    EXPECT_FALSE(guard_->add(use(kBase + kPage, 64, true)));
    EXPECT_TRUE(pages_.all_open());
    EXPECT_EQ(counts_.dropped.load(), 0U);
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::nothing);
}

TEST_F(GuardTest, AForkedChildFindsEverythingOpen) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, true)));
    static_cast<void>(guard_->touch(kBase + 100, 1, Access::write));
    guard_->end_in_child();
    EXPECT_TRUE(pages_.all_open());
    EXPECT_TRUE(guard_->idle());
}

TEST_F(GuardTest, ContextsThatGoTakeTheirUsesAlong) {
    std::array<char, 2> contexts{};
    for (std::size_t at = 0; at < 2; ++at) {
        Use made = use(kBase + at * kPage, 64, false);
        made.context = &contexts[at];
        ASSERT_TRUE(guard_->add(made));
    }
    guard_->forget_context(contexts.data());
    EXPECT_EQ(pages_.of(kBase), Protection::open);
    EXPECT_EQ(pages_.of(kBase + kPage), Protection::read_only);
}

}  // namespace
}  // namespace hostrace
