// The state machine behind the pages, on pages that are made up: which protection they have, and what a touch means.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "watch/guard.h"

namespace kvfix::watch {
namespace {

constexpr std::uintptr_t kPage = Guard::kPage;
constexpr std::uintptr_t kBase = 0x100000;

class FakePages final : public Pages {
  public:
    bool protect(std::uintptr_t begin, std::size_t bytes, Protection protection) override {
        const std::lock_guard held(mutex_);
        if (refuse) {
            return false;
        }
        EXPECT_EQ(begin % kPage, 0U);
        EXPECT_EQ(bytes % kPage, 0U);
        ++calls;
        for (std::uintptr_t page = begin; page < begin + bytes; page += kPage) {
            pages_[page] = protection;
        }
        return true;
    }
    Protection of(std::uintptr_t address) {
        const std::lock_guard held(mutex_);
        return pages_[address & ~(kPage - 1)];
    }
    bool all_open() {
        const std::lock_guard held(mutex_);
        for (const auto& [page, protection] : pages_) {
            if (protection != Protection::open) {
                return false;
            }
        }
        return true;
    }
    std::atomic<bool> refuse{false};
    std::atomic<int> calls{0};

  private:
    std::mutex mutex_;
    std::map<std::uintptr_t, Protection> pages_;
};

class GuardTest : public testing::Test {
  protected:
    // A stream's word, which the test writes as the device would.
    Use use(std::uintptr_t begin, std::size_t bytes, bool device_writes) {
        Use made;
        made.shape.begin = begin;
        made.shape.width = bytes;
        made.device_writes = device_writes;
        made.flag = &flag_;
        made.sequence = ++sequence_;
        return made;
    }
    void finish(std::uint32_t sequence) { __atomic_store_n(&flag_, sequence, __ATOMIC_RELEASE); }
    void finish_all() { finish(sequence_); }

    FakePages pages_;
    std::unique_ptr<Guard> guard_ = std::make_unique<Guard>(pages_, false);
    std::uint32_t flag_ = 0;
    std::uint32_t sequence_ = 0;
};

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
    EXPECT_EQ(guard_->counts.faults_stale.load(), 1U);
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
    finish(reads.sequence);
    guard_->retire();
    EXPECT_EQ(pages_.of(kBase), Protection::closed);
    finish(writes.sequence);
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

TEST_F(GuardTest, HoldKeepsThePageUntilItIsReleased) {
    Guard holding(pages_, true);
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
    EXPECT_EQ(guard_->counts.dropped.load(), 1U);
    EXPECT_TRUE(guard_->idle());
    EXPECT_EQ(guard_->touch(kBase, 1, Access::write).answer, Answer::nothing);
}

TEST_F(GuardTest, ThereIsRoomAgainWhenUsesHaveEnded) {
    for (std::size_t at = 0; at < Guard::kUsesMax; ++at) {
        ASSERT_TRUE(guard_->add(use(kBase + at * kPage, 64, false)));
    }
    EXPECT_FALSE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(guard_->counts.dropped.load(), 1U);
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
    EXPECT_EQ(guard_->counts.dropped.load(), 1U);
}

TEST_F(GuardTest, MemoryOfOthersIsForeign) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, false)));
    EXPECT_EQ(guard_->touch(kBase + 100 * kPage, 1, Access::write).answer, Answer::foreign);
}

TEST_F(GuardTest, AForkedChildFindsEverythingOpen) {
    ASSERT_TRUE(guard_->add(use(kBase, 64, true)));
    static_cast<void>(guard_->touch(kBase + 100, 1, Access::write));
    guard_->open_all_in_child();
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

// What is in flight is protected at every moment except for an open step, and what nobody uses is open in the end.
TEST_F(GuardTest, HoldsForEveryOrderOfEvents) {
    std::mt19937 random(7);
    const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
    std::deque<Use> in_flight;
    std::vector<Opening> openings;
    const auto covered = [&](std::uintptr_t page) {
        return std::any_of(openings.begin(), openings.end(),
                           [&](const Opening& open) { return open.begin <= page && page < open.end; });
    };
    for (int round = 0; round < 4000; ++round) {
        const std::uintptr_t at = kBase + below(16 * kPage);
        switch (below(6)) {
            case 0:
            case 1: {
                const Use made = use(at, 1 + below(3 * kPage), below(2) == 0);
                ASSERT_TRUE(guard_->add(made));
                in_flight.push_back(made);
                break;
            }
            case 2:
                if (!in_flight.empty()) {
                    finish(in_flight.front().sequence);
                    in_flight.pop_front();
                }
                break;
            case 3:
                if (!openings.empty()) {
                    guard_->close(openings.back());
                    openings.pop_back();
                }
                break;
            case 4:
                guard_->retire();
                break;
            default: {
                const Access access = below(2) == 0 ? Access::read : Access::write;
                const Verdict verdict = guard_->touch(at, 1, access);
                const auto raced = std::find_if(in_flight.begin(), in_flight.end(), [&](const Use& each) {
                    return each.forbids(access) && each.shape.begin <= at && at < each.shape.end();
                });
                ASSERT_EQ(verdict.answer == Answer::race, raced != in_flight.end());
                if (verdict.answer == Answer::race) {
                    std::erase_if(in_flight, [&](const Use& each) { return each.sequence == verdict.use.sequence; });
                } else if (verdict.answer == Answer::step) {
                    openings.push_back(verdict.opening);
                }
            }
        }
        for (const Use& each : in_flight) {
            const Protection least = each.device_writes ? Protection::closed : Protection::read_only;
            for (std::uintptr_t page = each.shape.begin & ~(kPage - 1); page < each.shape.end(); page += kPage) {
                ASSERT_TRUE(covered(page) || pages_.of(page) >= least);
            }
        }
    }
    for (const Opening& opening : openings) {
        guard_->close(opening);
    }
    finish_all();
    guard_->retire();
    EXPECT_TRUE(pages_.all_open());
}

// Many threads enqueue, touch and step at once. ThreadSanitizer looks on.
TEST(GuardThreads, EverythingIsOpenWhenAllHasEnded) {
    FakePages pages;
    const auto guard = std::make_unique<Guard>(pages, false);
    std::vector<std::thread> threads;
    std::array<std::uint32_t, 4> flags{};
    for (std::uint32_t number = 0; number < flags.size(); ++number) {
        threads.emplace_back([&, number] {
            std::mt19937 random(number);
            for (std::uint32_t sequence = 1; sequence <= 2000; ++sequence) {
                Use made;
                made.shape.begin = kBase + random() % (8 * kPage);
                made.shape.width = 1 + random() % kPage;
                made.device_writes = random() % 2 == 0;
                made.flag = &flags[number];
                made.sequence = sequence;
                static_cast<void>(guard->add(made));
                const Verdict verdict = guard->touch(kBase + random() % (8 * kPage), 1, Access::write);
                if (verdict.answer == Answer::step) {
                    guard->close(verdict.opening);
                }
                __atomic_store_n(&flags[number], sequence, __ATOMIC_RELEASE);
                if (sequence % 16 == 0) {
                    guard->retire();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    guard->retire();
    EXPECT_TRUE(guard->idle());
    EXPECT_TRUE(pages.all_open());
}

}  // namespace
}  // namespace kvfix::watch
