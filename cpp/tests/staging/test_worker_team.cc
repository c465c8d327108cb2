// The team: every chunk once, all ended on return, help that really comes, and nothing that hangs when it does not.
#include "staging/worker_team.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvfix {
namespace {

// Ends the process: a hang is a failure, and soon.
class HangIsFailure {
  public:
    HangIsFailure() { alarm(60); }
    HangIsFailure(const HangIsFailure&) = delete;
    HangIsFailure& operator=(const HangIsFailure&) = delete;
    ~HangIsFailure() { alarm(0); }
};

// Whether every thread but this one sleeps in the kernel. A worker says that it has parked a moment before it does, and until then it
// sees a run without being woken.
bool others_sleep() {
    const std::string self = std::to_string(gettid());
    return std::ranges::all_of(std::filesystem::directory_iterator("/proc/self/task"), [&](const auto& task) {
        std::ifstream stat(task.path() / "stat");
        const std::string line{std::istreambuf_iterator<char>(stat), {}};
        const std::size_t state = line.rfind(") ") + 2;
        return task.path().filename() == self || (state < line.size() && line[state] == 'S');
    });
}

// Plain memory, so that ThreadSanitizer sees whether the chunks, and the caller behind them, are in order.
class Sheet {
  public:
    explicit Sheet(std::uint32_t chunks) : marks_(chunks) {}
    void fill(WorkerTeam& team) {
        team.run(static_cast<std::uint32_t>(marks_.size()), [&](std::uint32_t chunk) noexcept { ++marks_[chunk]; });
    }
    bool all(int times) const {
        return std::ranges::all_of(marks_, [&](int mark) { return mark == times; });
    }

  private:
    std::vector<int> marks_;
};

class WorkerTeamTest : public ::testing::TestWithParam<unsigned> {
  protected:
    HangIsFailure watch;
    WorkerTeam team{GetParam()};
};

TEST_P(WorkerTeamTest, EveryChunkIsDoneOnceAndHasEndedOnReturn) {
    EXPECT_EQ(team.workers(), GetParam());
    for (std::uint32_t chunks = 0; chunks < 40; ++chunks) {
        Sheet sheet(chunks);
        for (int times = 1; times <= 20; ++times) {
            sheet.fill(team);
            ASSERT_TRUE(sheet.all(times)) << chunks << " chunks, run " << times;
        }
    }
}

TEST_P(WorkerTeamTest, SeveralCallersAtOnceEachGetTheirOwnWorkDone) {
    std::vector<Sheet> sheets(4, Sheet(9));
    std::vector<std::thread> callers;
    callers.reserve(sheets.size());
    for (Sheet& sheet : sheets) {
        callers.emplace_back([&] {
            for (int run = 0; run < 500; ++run) {
                sheet.fill(team);
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
    for (const Sheet& sheet : sheets) {
        EXPECT_TRUE(sheet.all(500));
    }
}

TEST_P(WorkerTeamTest, ARunInsideAChunkIsDoneByThatThreadAlone) {
    std::vector<Sheet> inner(5, Sheet(3));
    team.run(5, [&](std::uint32_t chunk) noexcept { inner[chunk].fill(team); });
    for (const Sheet& sheet : inner) {
        EXPECT_TRUE(sheet.all(1));
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, WorkerTeamTest, ::testing::Values(0U, 1U, 3U, 7U));

// Each chunk waits until all of them have begun: this ends only if every worker comes.
void rendezvous(WorkerTeam& team) {
    std::atomic<unsigned> begun = 0;
    std::mutex mutex;
    std::set<std::thread::id> threads;
    const unsigned everybody = team.workers() + 1;
    team.run(everybody, [&](std::uint32_t) noexcept {
        {
            const std::lock_guard guard(mutex);
            threads.insert(std::this_thread::get_id());
        }
        ++begun;
        while (begun != everybody) {
            std::this_thread::yield();
        }
    });
    EXPECT_EQ(threads.size(), everybody);
}

TEST(WorkerTeam, EveryWorkerComesWhetherItSpinsOrHasParked) {
    const HangIsFailure watch;
    WorkerTeam team(3);
    for (int i = 0; i < 50; ++i) {
        rendezvous(team);  // soon after the last one: they may be spinning
        rendezvous(team);
        while (team.parked() != team.workers() || !others_sleep()) {
            std::this_thread::yield();
        }
    }
}

// A worker holds its chunk until the caller has long run out of others. If run() did not wait for it, the caller would see an
// empty mark; and the worker's last step would be on a stack that is gone.
TEST(WorkerTeam, ARunReturnsWhenItsLastChunkHasEnded) {
    const HangIsFailure watch;
    WorkerTeam team(1);
    const std::thread::id caller = std::this_thread::get_id();
    for (int i = 0; i < 20; ++i) {
        std::atomic<bool> worker_came = false;
        std::atomic<bool> worker_ended = false;
        team.run(2, [&](std::uint32_t) noexcept {
            if (std::this_thread::get_id() == caller) {
                while (!worker_came) {
                    std::this_thread::yield();
                }
                return;
            }
            worker_came = true;
            for (int turn = 0; turn < 1000; ++turn) {
                std::this_thread::yield();
            }
            worker_ended = true;
        });
        ASSERT_TRUE(worker_ended);
    }
}

TEST(WorkerTeam, EndsWithWorkersThatSpinOrHaveParked) {
    const HangIsFailure watch;
    for (int i = 0; i < 50; ++i) {
        WorkerTeam team(2);
        if (i % 2 == 0) {
            rendezvous(team);
            continue;
        }
        while (team.parked() != team.workers()) {
            std::this_thread::yield();
        }
    }
}

TEST(WorkerTeam, TheProcessHasOneForAsLongAsSomebodyHoldsIt) {
    const auto one = WorkerTeam::shared();
    EXPECT_EQ(WorkerTeam::shared(), one);
    EXPECT_LE(one->workers(), 4U);
    EXPECT_LE(one->workers(), std::max(1U, std::thread::hardware_concurrency()) / 4);
}

// A child has no workers, though its copy of the team says so: it does the work alone and neither run nor end hangs.
TEST(WorkerTeam, InAForkedChildTheCallerWorksAlone) {
    auto team = std::make_unique<WorkerTeam>(2);
    rendezvous(*team);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(20);  // a hang is a failure
        Sheet sheet(8);
        sheet.fill(*team);
        team.reset();
        _exit(sheet.all(1) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace kvfix
