// The three interleavings of a scheduler and a remote reader that corrupt a cache without locks. Each is chosen, not
// hoped for: thread A is held inside its call, and thread B then makes its own. In the unlocked double B gets through,
// and the damage is visible. In our manager B finds the lock taken while A is inside.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "core/pause_point.h"
#include "core/request_books.h"
#include "tests/support.h"
#include "tests/unlocked_double.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;
using testing::UnlockedDouble;

const Tokens kX = tokens(4, 1000);

// Holds `a` at `point` and runs `b`. Returns true if b finished while a was inside, and false if it met the lock.
template <class A, class B>
bool overlap(const std::string& point, A&& a, B&& b) {
    PausePoint a_inside(point);
    PausePoint b_met("lock.contended");
    std::atomic<bool> b_ended = false;
    std::thread first(a);
    a_inside.await_arrival();
    std::thread second([&] {
        b();
        b_ended = true;
        KVFIX_PAUSE("lock.contended");  // without a lock, nothing else says that b has come this far
    });
    b_met.await_arrival();
    const bool overlapped = b_ended;
    b_met.release();
    a_inside.release();
    first.join();
    second.join();
    return overlapped;
}

PinnedSlot pin(Manager& manager, BlockId block) { return manager.pin_blocks_by_id({&block, 1}).front(); }

// ------------------------------------------------------------------------------------------------- peek, then claim

TEST(PeekThenClaim, TheUnlockedDoubleHandsOneSlotToTwoOwners) {
    UnlockedDouble manager(2, 2);
    EXPECT_TRUE(overlap("evict.picked", [&] { manager.allocate(0); }, [&] { manager.allocate(1); }));
    EXPECT_EQ(manager[0].slot_primary, manager[1].slot_primary);
}

TEST(PeekThenClaim, AnotherAllocationWaitsAndGetsAnotherSlot) {
    Manager manager(config(2));
    manager.cache(1, kX);
    manager.cache(2, tokens(4, 2000));
    EXPECT_FALSE(overlap(
        "evict.picked", [&] { manager.add_sequence(request(3, tokens(4, 3000))); },
        [&] { manager.add_sequence(request(4, tokens(4, 4000))); }));
    EXPECT_NE(manager.slots(3), manager.slots(4));
    manager.check_invariants();
}

TEST(PeekThenClaim, AReaderWaitsAndDoesNotFindWhatIsBeingEvicted) {
    Manager manager(config(1));
    manager.cache(1, kX);
    std::uint64_t found = 1;
    EXPECT_FALSE(overlap(
        "evict.picked", [&] { manager.add_sequence(request(2, tokens(4, 2000))); },
        [&] { found = manager.reusable(joined(kX, {1})); }));
    EXPECT_EQ(found, 0U);
    manager.check_invariants();
}

TEST(PeekThenClaim, AnEvictionWaitsAndDoesNotTakeWhatIsBeingPinned) {
    Manager manager(config(2));
    const BlockId x = manager.cache(1, kX).front();
    manager.cache(2, tokens(4, 2000));
    std::optional<PinnedSlot> pinned;
    EXPECT_FALSE(overlap(
        "pin.found", [&] { pinned = pin(manager, x); }, [&] { manager.add_sequence(request(3, tokens(4, 3000))); }));
    ASSERT_TRUE(pinned);
    EXPECT_NE(static_cast<std::int32_t>(pinned->slot), manager.slots(3).front());
    EXPECT_EQ(manager.reusable(joined(kX, {1})), 4U);
    manager.check_invariants();
}

// -------------------------------------------------------------------------------------------- unpin while releasing

TEST(UnpinWhileReleasing, TheUnlockedDoubleFreesTheSlotTwice) {
    UnlockedDouble manager(1, 2);
    manager.allocate(0);
    ++manager[0].pins;
    EXPECT_TRUE(overlap("release.unowned", [&] { manager.let_go(0); }, [&] { manager.unpin(0); }));
    EXPECT_EQ(std::ranges::count(manager.free_primary(), manager[0].slot_primary), 2);
}

TEST(UnpinWhileReleasing, TheUnpinWaitsAndTheSlotIsFreedOnce) {
    Manager manager(config(2));
    manager.add_sequence(request(1, kX));
    const std::vector<BlockId> pinned = manager.pin(1);
    EXPECT_FALSE(overlap(
        "release.unowned", [&] { manager.forget(1); }, [&] { manager.unpin_blocks_by_id(pinned, std::nullopt); }));
    EXPECT_EQ(manager.primary().free, 2U);
    manager.check_invariants();
    manager.add_batch({request(2, tokens(4, 2000)), request(3, tokens(4, 3000))});
    EXPECT_NE(manager.slots(2), manager.slots(3));
}

TEST(UnpinWhileReleasing, TheReleaseWaitsAndACachedBlockQueuesOnce) {
    Manager manager(config(2));
    manager.add_sequence(request(1, kX));
    manager.store_context_blocks(1, 4);
    const std::vector<BlockId> pinned = manager.pin(1);
    EXPECT_FALSE(overlap(
        "unpin.checked", [&] { manager.unpin_blocks_by_id(pinned, std::nullopt); }, [&] { manager.remove(1); }));
    EXPECT_EQ(manager.primary().cached, 1U);
    manager.check_invariants();
}

// ---------------------------------------------------------------------------------------------- onboard under a pin

TEST(OnboardUnderAPin, TheUnlockedDoubleMovesTheSlotAwayUnderTheReader) {
    UnlockedDouble manager(1, 2);
    manager.store_in_host(0);
    int read_from = UnlockedDouble::kNowhere;
    EXPECT_TRUE(overlap("admit.planned", [&] { manager.onboard(0); }, [&] { read_from = manager.pin_in_host(0); }));
    EXPECT_EQ(manager[0].pins, 1);
    EXPECT_NE(manager[0].slot_host, read_from);
    EXPECT_EQ(std::ranges::count(manager.free_host(), read_from), 1) << "free for others while it is read";
}

// X is only in host. Afterwards something else wants its host slot.
class OnboardUnderAPinOfOurs : public ::testing::Test {
  protected:
    OnboardUnderAPinOfOurs() : x(manager.cache(1, kX).front()) { manager.flush_primary(2); }
    void expect_pin_holds() {
        ASSERT_TRUE(pinned);
        EXPECT_EQ(pinned->tier, Tier::host);
        const auto items = manager.run_transfers();
        ASSERT_EQ(items.size(), 1U);
        EXPECT_EQ(items[0].kind, TransferKind::onboard);
        EXPECT_EQ(items[0].slot_src, pinned->slot) << "copied up, not moved";
        manager.remove(3);
        manager.cache(4, tokens(4, 4000));
        manager.add_sequence(request(5, tokens(8, 5000)));  // evicts both; only X's host copy can make room
        for (const TransferItem& item : manager.run_transfers()) {
            EXPECT_FALSE(item.kind == TransferKind::offload && item.slot_dst == pinned->slot)
                << "written under the reader";
        }
        EXPECT_EQ(manager.analyze_prefix_reuse(request(6, joined(kX, {1}))).blocks_host, 1U);
        manager.unpin_blocks_by_id({&x, 1}, Tier::host);
        manager.check_invariants();
    }

    Manager manager{config(2, 1)};
    const BlockId x;
    std::optional<PinnedSlot> pinned;
};

TEST_F(OnboardUnderAPinOfOurs, TheReaderWaitsForTheAdmissionAndItsSlotStays) {
    EXPECT_FALSE(overlap(
        "admit.planned", [&] { manager.add_sequence(request(3, joined(kX, {1}))); },
        [&] { pinned = pin(manager, x); }));
    expect_pin_holds();
}

TEST_F(OnboardUnderAPinOfOurs, TheAdmissionWaitsForTheReaderAndItsSlotStays) {
    EXPECT_FALSE(overlap(
        "pin.found", [&] { pinned = pin(manager, x); }, [&] { manager.add_sequence(request(3, joined(kX, {1}))); }));
    expect_pin_holds();
}

// ---------------------------------------------------------------------------------------------- a fork meanwhile

// Runs in a child. The child's copy must be whole, because ending it would otherwise find a half-done call; and the
// child may not use it.
int use_and_end(std::unique_ptr<Manager> copy) {
    const std::string why = testing::message_of<std::runtime_error>([&] { copy->digest(); });
    copy.reset();
    Manager fresh(config(4));
    fresh.cache(1, kX);
    fresh.check_invariants();
    return why.find("made in a parent") == std::string::npos ? 1 : 0;
}

TEST(AFork, WaitsForTheCallThatRunsAndItsChildMayEndTheCopyAndNothingElse) {
    auto manager = std::make_unique<Manager>(config(4));
    int status = -1;
    EXPECT_FALSE(overlap(
        "admit.planned", [&] { manager->add_sequence(request(1, kX)); },
        [&] {
            const pid_t child = fork();
            if (child == 0) {
                _exit(use_and_end(std::move(manager)));
            }
            waitpid(child, &status, 0);
        }));
    EXPECT_EQ(status, 0);
    EXPECT_EQ(manager->primary().owned, 1U);
    manager->check_invariants();
}

// A reset of more blocks than it removes at once, held behind its first step.
class HalfReset {
  public:
    explicit HalfReset(Manager& manager) : reset_([&manager] { manager.reset_reuse_state(); }) {
        first_step_.await_arrival();
    }
    HalfReset(const HalfReset&) = delete;
    HalfReset& operator=(const HalfReset&) = delete;
    ~HalfReset() { finish(); }
    void finish() {
        first_step_.release();
        if (reset_.joinable()) {
            reset_.join();
        }
    }

  private:
    PausePoint first_step_{"reset.between"};
    std::thread reset_;
};
constexpr std::uint32_t kManyBlocks = 3000;
constexpr std::uint32_t kLong = kManyBlocks / 2 * testing::kTokensPerBlock;

TEST(Reset, LetsOthersInAndShowsThemNothing) {
    Manager manager(config(kManyBlocks));
    const Tokens known = tokens(kLong, 0);
    manager.cache(1, known);
    manager.add_sequence(request(2, tokens(8, 100'000)));
    HalfReset reset(manager);
    const std::uint64_t cached = manager.get_kv_cache_stats().windows.front().primary.cached;
    EXPECT_GT(cached, 0U) << "it is half done";
    EXPECT_EQ(manager.analyze_prefix_reuse(request(9, known)).tokens, 0U);
    manager.add_sequence(request(3, joined(tokens(8, 0), tokens(8, 200'000))));
    manager.store_context_blocks(2, 8);
    manager.store_context_blocks(3, 16);
    manager.remove_sequence(3, true, false, std::nullopt);
    manager.add_sequence(request(4, tokens(testing::kTokensPerBlock - 1, 300'000)));
    manager.remove(4, testing::kTokensPerBlock - 1);
    EXPECT_EQ(manager.get_kv_cache_stats().windows.front().primary.cached, cached) << "nothing is stored meanwhile";
    manager.check_invariants();
    reset.finish();
    EXPECT_EQ(manager.get_kv_cache_stats().windows.front().primary.cached, 0U);
    manager.check_invariants();
    manager.store_context_blocks(2, 8);
    EXPECT_EQ(manager.analyze_prefix_reuse(request(9, tokens(9, 100'000))).tokens, 8U) << "from now on again";
}

TEST(Reset, ShowsNothingOfAWindowBehindTheGapThatItMakes) {
    BlockManagerConfig of = config(kManyBlocks);
    of.windows.front().window_size = 2 * testing::kTokensPerBlock;
    Manager manager(of);
    const Tokens known = tokens(kLong, 0);
    manager.cache(1, known);
    HalfReset reset(manager);
    EXPECT_EQ(manager.reusable(known), 0U);
    manager.check_invariants();
}

TEST(Reset, ForgetsWhatWasFoundInAWindowThatItHasNotReached) {
    BlockManagerConfig of = config(kManyBlocks);
    of.windows.push_back(of.windows.front());
    of.windows.front().window_size = 2 * testing::kTokensPerBlock;
    of.windows.back().window_size = 2 * kLong;
    Manager manager(of);
    const RequestPtr asked = request(2, tokens(kLong, 0));
    manager.cache(1, asked->tokens);
    EXPECT_GT(manager.analyze_prefix_reuse(asked).tokens, 0U);
    HalfReset reset(manager);
    EXPECT_EQ(manager.analyze_prefix_reuse(asked).tokens, 0U);
    manager.check_invariants();  // compares what is remembered with what is there
}

TEST(Reset, LetsNobodyWaitForABlockThatNobodyWillFind) {
    Manager manager(config(kManyBlocks));
    manager.cache(1, tokens(kLong, 0));
    RequestBooks books(manager, std::nullopt, std::nullopt);
    const Tokens shared = tokens(8, 100'000);
    Prompt first{request(2, joined(shared, {1})), false};
    Prompt second{request(3, joined(shared, {2})), false};
    HalfReset reset(manager);
    RequestBooks::Starting starting = books.start({kManyBlocks});
    EXPECT_EQ(books.ask(starting, first, 4), RequestBooks::StartAnswer::fits);
    EXPECT_EQ(books.ask(starting, second, 4), RequestBooks::StartAnswer::fits);
    reset.finish();
    starting = books.start({kManyBlocks});
    EXPECT_EQ(books.ask(starting, first, 4), RequestBooks::StartAnswer::fits);
    EXPECT_EQ(books.ask(starting, second, 4), RequestBooks::StartAnswer::gains_by_waiting);
}

}  // namespace
}  // namespace kvfix
