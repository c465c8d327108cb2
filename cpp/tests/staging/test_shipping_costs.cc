// What a shipment costs while a server runs, and what a driver's call that fails leaves behind.
#include <cstdlib>
#include <new>

#include "tests/staging/stager_fixture.h"

namespace {

thread_local std::uint64_t allocations = 0;  // outside of the device

}  // namespace

// GCC takes the pair for a mismatch where it has only one of them in a caller.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    allocations += kvfix::is_in_device ? 0 : 1;
    if (void* const memory = std::malloc(bytes)) {
        return memory;
    }
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace kvfix {
namespace {

constexpr std::uint64_t kSlots = 3;
constexpr std::uint64_t kShipments = 20 * kSlots;

class ShippingCosts : public StagerTest, public ::testing::WithParamInterface<Case> {
  protected:
    void begin() { make(GetParam(), {}, kSlots); }
    // The device is done with each shipment when the next one begins.
    void ship_and_finish(const Shipment& one) {
        stager->ship(one, size.rows);
        probe.sim().synchronize(stream);
    }
    bool is_early() const { return GetParam().mode == StagerMode::early_copy; }
    std::uint64_t calls(DriverCall kind) const { return probe.calls(kind); }
    const Rows rows{2, 4, 0};
};

TEST_P(ShippingCosts, OnceItRunsNothingIsAllocated) {
    begin();
    const Target to = target();
    const Shipment one = shipment(to, rows, size.blocks, stream);
    for (std::uint64_t i = 0; i < kSlots; ++i) {
        ship_and_finish(one);
    }
    const std::uint64_t before = allocations;
    for (std::uint64_t i = 0; i < kShipments; ++i) {
        ship_and_finish(one);
    }
    EXPECT_EQ(allocations, before);
    const Rows on_the_heap = rows;
    EXPECT_GT(allocations, before) << "nothing is counted";
}

// The racy original makes a copy for each pool with V1, and one launch with V2.
TEST_P(ShippingCosts, TheDriverIsCalledAsByTheOriginalAndForOneEvent) {
    begin();
    const Target to = target();
    const Shipment one = shipment(to, rows, size.blocks, stream);
    const std::uint64_t copies = calls(DriverCall::copy);
    const std::uint64_t launches = calls(DriverCall::launch);
    for (std::uint64_t i = 0; i < kShipments; ++i) {
        ship_and_finish(one);
    }
    const bool launches_a_kernel = is_early() || (layout == OffsetLayout::v2 && GetParam().kernels);
    const std::uint64_t copies_each = is_early() || !launches_a_kernel ? size.pools : 0;
    EXPECT_EQ(calls(DriverCall::copy) - copies, kShipments * copies_each);
    EXPECT_EQ(calls(DriverCall::launch) - launches, kShipments * (launches_a_kernel ? 1 : 0));
    EXPECT_EQ(calls(DriverCall::record), kShipments * (is_early() ? 2 : 1));
    if (!is_early()) {  // one that is early asks until its copy is there
        EXPECT_LE(calls(DriverCall::ask), kShipments);
    }
    EXPECT_EQ(calls(DriverCall::wait) + calls(DriverCall::make_wait), 0U);
}

// Whichever call fails: a shipment that returns has shipped, and the stager serves the next ones.
TEST_P(ShippingCosts, ACallThatFailsCostsThatShipmentAlone) {
    const KeepsMemoryOnPurpose keeps;
    constexpr std::uint64_t kCallsMax = 20;  // an early copy that takes its time is asked about more often
    for (std::uint64_t ordinal = 1; ordinal <= kCallsMax; ++ordinal) {
        begin();
        number_table(static_cast<std::int32_t>(ordinal));
        for (std::uint64_t i = 0; i < kSlots; ++i) {  // from now on slots are asked about
            Target filler = target();
            ship_and_finish(shipment(filler, rows, size.blocks, stream));
        }
        Target to = target();
        probe.refuse_call(ordinal);
        bool has_shipped = true;
        try {
            stager->ship(shipment(to, rows, size.blocks, stream), size.rows);
        } catch (const DeviceError&) {
            has_shipped = false;
        }
        if (!probe.has_refused()) {
            EXPECT_GT(ordinal, 1U) << "no call was refused";
            probe.refuse_call(0);
            return;
        }
        probe.sim().synchronize(stream);
        probe.sim().synchronize(probe.newest_stream());  // an early copy that was given up may still read the table
        if (has_shipped) {
            expect(to, rows, size.blocks);
            expect_arrived(to);
        }
        for (std::uint64_t i = 0; i < 2 * kSlots; ++i) {
            number_table(static_cast<std::int32_t>(1000 * i));
            Target next = target();
            ship(next, rows, size.blocks, stream);
            probe.sim().synchronize(stream);
            expect_arrived(next);
        }
    }
    EXPECT_TRUE(is_early()) << "a shipment makes fewer calls than that";
}

INSTANTIATE_TEST_SUITE_P(Stagers, ShippingCosts, ::testing::ValuesIn(kEveryCase),
                         [](const auto& named) { return name_of(named.param); });

}  // namespace
}  // namespace kvfix
