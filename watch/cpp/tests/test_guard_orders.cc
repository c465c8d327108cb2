// The state machine behind the pages in every order of events, and with threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "fake_pages.h"

namespace hostrace {
namespace {

void expect_protected(const std::deque<Use>& in_flight, const std::vector<Opening>& openings, FakePages& pages) {
    const auto covered = [&](std::uintptr_t page) {
        return std::any_of(openings.begin(), openings.end(),
                           [&](const Opening& open) { return open.pages.begin <= page && page < open.pages.end; });
    };
    for (const Use& each : in_flight) {
        const Protection least = each.device_writes ? Protection::closed : Protection::read_only;
        for (std::uintptr_t page = each.shape.begin & ~(kPage - 1); page < each.shape.end(); page += kPage) {
            ASSERT_TRUE(covered(page) || pages.of(page) >= least);
        }
    }
}

// What is in flight is protected at every moment except for an open step, and what nobody uses is open in the end.
TEST_F(GuardTest, HoldsForEveryOrderOfEvents) {
    std::mt19937 random(7);
    const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
    std::deque<Use> in_flight;
    std::vector<Opening> openings;
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
                    finish(in_flight.front().ends.sequence);
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
                    std::erase_if(in_flight,
                                  [&](const Use& each) { return each.ends.sequence == verdict.use.ends.sequence; });
                } else if (verdict.answer == Answer::step) {
                    openings.push_back(verdict.opening);
                }
            }
        }
        ASSERT_NO_FATAL_FAILURE(expect_protected(in_flight, openings, pages_));
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
    Counts counts{};
    const auto guard = std::make_unique<Guard>(pages, counts, false);
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
                made.ends = {&flags[number], sequence};
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
}  // namespace hostrace
