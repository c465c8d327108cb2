// A slot belongs to the device until its fence has passed, whatever happens in between.
#include "staging/staging_ring.h"

#include <optional>
#include <set>
#include <stdexcept>

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

constexpr std::size_t kWords = 64;
constexpr std::size_t kBytes = kWords * sizeof(std::int32_t);

class StagingRingTest : public StagingTest {
  protected:
    static void write(const StagingSlot& slot, std::int32_t value) {
        std::fill_n(static_cast<std::int32_t*>(slot.data()), kWords,
                    value);  // plain: the slot is ours, or it is a race
    }
    void copy_from(StagingSlot& slot, Words target, StreamHandle on) {
        probe.copy({address_of(target.data()), slot.lend(on), kBytes}, on);
    }
    // Returns where the slot is.
    void* ship(std::int32_t value, Words target, StreamHandle on) {
        StagingSlot slot = ring->take();
        void* const at = slot.data();
        write(slot, value);
        copy_from(slot, target, on);
        std::move(slot).submit();
        return at;
    }
    void remake(std::size_t slots) { ring.emplace(device, slots, kBytes); }

    std::optional<StagingRing> ring{std::in_place, device, std::size_t{2}, kBytes};
    Words first = device_words(kWords);
    Words second = device_words(kWords);
    Words third = device_words(kWords);
};

TEST_F(StagingRingTest, ASlotIsNotRefilledBeforeItsFence) {
    hold_until_wait(stream);
    ship(1, first, stream);
    ship(2, second, stream);
    EXPECT_EQ(opened, 0) << "two slots hold two uses without waiting";
    ship(3, third, stream);
    ASSERT_EQ(opened, 1);
    probe.synchronize(stream);
    EXPECT_EQ(values(first), all(kWords, 1));
    EXPECT_EQ(values(second), all(kWords, 2));
    EXPECT_EQ(values(third), all(kWords, 3));
}

TEST_F(StagingRingTest, TheFenceCoversWhatIsEnqueuedUntilSubmit) {
    const EventHandle lent = probe.create_event();
    {
        StagingSlot slot = ring->take();
        write(slot, 1);
        const std::uintptr_t staged = slot.lend(stream);
        probe.record(lent, stream);
        hold_until_wait(stream);  // after the lending, before the copy
        probe.copy({address_of(first.data()), staged, kBytes}, stream);
        std::move(slot).submit();
    }
    ship(2, second, stream);
    probe.sim().wait(lent);  // a fence that was recorded too early has passed by now
    ship(3, third, stream);
    ASSERT_EQ(opened, 1);
    probe.synchronize(stream);
    EXPECT_EQ(values(first), all(kWords, 1));
}

TEST_F(StagingRingTest, NeverGrowsAndComesRoundInOrder) {
    remake(3);
    std::vector<void*> slots;
    for (std::int32_t i = 0; i < 60; ++i) {
        slots.push_back(ship(i, first, i % 2 == 0 ? stream : other));
    }
    EXPECT_EQ(std::set<void*>(slots.begin(), slots.end()).size(), 3U);
    for (std::size_t i = 3; i < slots.size(); ++i) {
        ASSERT_EQ(slots[i], slots[i - 3]);
    }
    EXPECT_EQ(ring->stats().taken, 60U);
}

TEST_F(StagingRingTest, WaitsForTheOldestAloneAndCountsIt) {
    const GateHandle held_on = probe.close_gate(other);
    hold_until_wait(stream);
    ship(1, first, stream);
    ship(2, second, other);
    EXPECT_EQ(ring->stats().waits, 0U);
    ship(3, third, stream);  // returns although the other stream is still held
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(ring->stats().waits, 1U);
    EXPECT_GT(ring->stats().wait_ns, 0U);
    probe.open_gate(held_on);
    ring->drain();
    EXPECT_EQ(values(second), all(kWords, 2));
}

TEST_F(StagingRingTest, AsksOnceAroundTheRingAsLongAsNothingIsPending) {
    remake(3);
    const auto questions_of = [&](std::int32_t value) {
        probe.sim().synchronize(stream);
        const std::uint64_t before = probe.questions();
        ship(value, first, stream);
        return probe.questions() - before;
    };
    for (std::int32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(questions_of(i), 0U) << "nothing has used the slot";
    }
    EXPECT_EQ(questions_of(3), 3U) << "this slot, and those behind it";
    EXPECT_EQ(questions_of(4), 0U);
    EXPECT_EQ(questions_of(5), 0U);
    EXPECT_EQ(questions_of(6), 3U);
}

TEST_F(StagingRingTest, AsksNoFurtherThanTheFirstThatIsPending) {
    remake(3);
    ship(1, first, stream);
    probe.sim().synchronize(stream);
    hold_until_wait(other);
    ship(2, second, other);
    ship(3, third, other);
    const std::uint64_t before = probe.questions();
    ship(4, first, stream);
    EXPECT_EQ(probe.questions() - before, 2U);
    EXPECT_EQ(opened, 0);
    ship(5, first, stream);
    EXPECT_EQ(opened, 1) << "the held slot was refilled";
}

// With one event for both slots, the second use would move the end of the first to another stream.
TEST_F(StagingRingTest, AnotherSlotsUseDoesNotMoveASlotsFence) {
    hold_until_wait(stream);
    ship(1, first, stream);
    ship(2, second, other);
    probe.sim().synchronize(other);
    ship(3, third, other);
    ASSERT_EQ(opened, 1) << "the first slot was refilled while its copy was held";
    ring->drain();
    EXPECT_EQ(values(first), all(kWords, 1));
}

TEST_F(StagingRingTest, AnExceptionBeforeLendingGivesTheSlotBackAtOnce) {
    hold_until_synchronize(stream);
    void* at = nullptr;
    try {
        const StagingSlot slot = ring->take();
        at = slot.data();
        throw std::runtime_error("the caller's");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(opened, 0) << "nothing was lent, so there is nothing to wait for";
    EXPECT_EQ(ring->take().data(), at);
    probe.synchronize(stream);
}

TEST_F(StagingRingTest, AnExceptionAfterLendingWaitsForTheStream) {
    hold_until_synchronize(stream);
    void* at = nullptr;
    try {
        StagingSlot slot = ring->take();
        at = slot.data();
        write(slot, 1);
        copy_from(slot, first, stream);
        throw std::runtime_error("the caller's");
    } catch (const std::runtime_error&) {
    }
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(ship(2, second, stream), at);
    probe.synchronize(stream);
    EXPECT_EQ(values(first), all(kWords, 1));
    EXPECT_EQ(values(second), all(kWords, 2));
}

TEST_F(StagingRingTest, ASlotIsLentToOneStream) {
    StagingSlot slot = ring->take();
    EXPECT_THROW(std::move(slot).submit(), InvariantViolation) << "nothing was enqueued that could end the use";
    slot.lend(stream);
    slot.lend_to_kernels(stream);
    EXPECT_THROW(slot.lend(other), InvariantViolation);
    EXPECT_THROW(slot.lend_to_kernels(other), InvariantViolation);
    std::move(slot).submit();
}

TEST_F(StagingRingTest, ASlotWhoseStreamCannotBeWaitedForIsNeverHandedOutAgain) {
    const KeepsMemoryOnPurpose keeps;
    remake(2);
    break_stream(stream);
    void* lost = nullptr;
    {
        StagingSlot slot = ring->take();
        lost = slot.data();
        slot.lend(stream);
        EXPECT_THROW(std::move(slot).submit(), DeviceError);
    }
    void* const kept = ship(1, first, other);
    EXPECT_NE(kept, lost);
    for (std::int32_t i = 2; i < 10; ++i) {
        ASSERT_EQ(ship(i, first, other), kept);
    }
    ring.reset();
    EXPECT_TRUE(is_mapped(lost));
    EXPECT_FALSE(is_mapped(kept));
}

TEST_F(StagingRingTest, WithNoSlotLeftItSaysWhy) {
    const KeepsMemoryOnPurpose keeps;
    remake(2);
    break_stream(stream);
    for (int i = 0; i < 2; ++i) {
        StagingSlot slot = ring->take();
        slot.lend(stream);
    }
    EXPECT_CONTAINS(error_of([&] { ring->take(); }), "none of 2 staging slots is left");
}

TEST_F(StagingRingTest, AFailureOfAUseIsToldOnceAndTheOtherSlotsGoOn) {
    const KeepsMemoryOnPurpose keeps;
    remake(2);
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    void* const lost = ship(1, first, stream);
    probe.open_gate(gate);
    void* const kept = ship(2, second, other);
    EXPECT_CONTAINS(error_of([&] { ring->take(); }), "on request");
    EXPECT_EQ(ship(3, third, other), kept);
    EXPECT_EQ(ship(4, third, other), kept);
    ring->drain();
    EXPECT_EQ(values(third), all(kWords, 4));
    ring.reset();
    EXPECT_TRUE(is_mapped(lost));
    EXPECT_FALSE(is_mapped(kept));
}

TEST_F(StagingRingTest, TheLastFenceIsNotOneThatFailed) {
    const KeepsMemoryOnPurpose keeps;
    remake(2);
    EXPECT_EQ(ring->last_fence(), nullptr);
    EXPECT_FALSE(ring->drop_failed());
    ship(1, first, other);
    EXPECT_NE(ring->last_fence(), nullptr);
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    ship(2, second, stream);
    probe.open_gate(gate);
    EXPECT_THROW(probe.synchronize(stream), DeviceError);
    EXPECT_TRUE(ring->drop_failed());
    EXPECT_EQ(ring->last_fence(), nullptr);
    EXPECT_FALSE(ring->drop_failed()) << "told once";
}

TEST_F(StagingRingTest, ClosingWaitsForWhatIsPending) {
    hold_until_wait(stream);
    void* const at = ship(1, first, stream);
    ring.reset();
    ASSERT_EQ(opened, 1);
    EXPECT_EQ(values(first), all(kWords, 1));
    EXPECT_FALSE(is_mapped(at));
}

TEST_F(StagingRingTest, DrainingWaitsForTheRestWhenOneHasFailed) {
    const KeepsMemoryOnPurpose keeps;
    remake(2);
    const GateHandle gate = probe.close_gate(stream);
    probe.sim().fail_operation(1);
    ship(1, first, stream);
    probe.open_gate(gate);
    EXPECT_THROW(probe.sim().synchronize(stream), DeviceError);
    const GateHandle held_on = probe.close_gate(other);
    ship(2, second, other);
    // The first wait finds the failure; the second one opens the gate.
    probe.at_next_wait([&] { probe.at_next_wait([&] { probe.open_gate(held_on); }); });
    EXPECT_CONTAINS(error_of([&] { ring->drain(); }), "on request");
    EXPECT_EQ(values(second), all(kWords, 2));
    ring->drain();  // the failure has been reported
}

}  // namespace
}  // namespace kvfix
