// A place of the ring belongs to the device from its sending until its digest has been read.
#include "staging/digest_ring.h"

#include <optional>
#include <stdexcept>

#include "tests/staging/staging_fixture.h"

namespace kvfix {
namespace {

constexpr std::uint32_t kBlocks = 6;
constexpr std::uint32_t kLayers = 2;
constexpr std::size_t kBlockWords = 64;
constexpr std::uint32_t kPlaces = 4;
constexpr std::uint64_t kKey = 7;

class DigestRingTest : public StagingTest {
  protected:
    using Slots = std::vector<std::uint32_t>;
    using Digests = std::vector<std::uint64_t>;

    DigestRingTest() {
        for (std::uint32_t slot = 0; slot < kBlocks; ++slot) {
            fill(block(slot), static_cast<std::int32_t>(slot + 1), stream);
        }
    }
    Words block(std::uint32_t slot) { return memory.subspan(slot * kBlockWords, kBlockWords); }
    DigestedPool pool() {
        return {.address = address_of(memory.data()),
                .slot_bytes = kBlockWords * sizeof(std::int32_t),
                .layers = kLayers,
                .parts = 2};
    }
    // Of a ring that is used once.
    Digests digests_of(const Slots& slots) {
        DigestRing once(device, stream, std::vector{pool()}, kBlocks, kKey);
        once.send(slots);
        probe.synchronize(stream);
        return once.arrived().at(0).by_layer;
    }

    Words memory = device_words(kBlocks * kBlockWords);
    std::optional<DigestRing> ring{std::in_place, device, stream, std::vector{pool()}, kPlaces, kKey};
};

TEST_F(DigestRingTest, GivesAPlaceBackWhenItsDigestHasBeenReadAndNotBefore) {
    const GateHandle gate = probe.close_gate(stream);
    ring->send(Slots{0, 1, 2});
    EXPECT_TRUE(ring->arrived().empty());
    EXPECT_THROW(ring->send(Slots{3, 4}), std::invalid_argument);
    EXPECT_EQ(ring->free(), 1U);
    probe.open_gate(gate);
    probe.synchronize(stream);
    EXPECT_EQ(ring->free(), 1U) << "nobody has read them";
    EXPECT_EQ(ring->arrived().at(0).by_layer, digests_of({0, 1, 2}));
    EXPECT_EQ(ring->free(), kPlaces);
}

TEST_F(DigestRingTest, GoesRoundWhileEarlierOnesAreOnTheirWay) {
    ring->send(Slots{0, 1, 2});
    probe.synchronize(stream);
    ring->arrived();
    const GateHandle gate = probe.close_gate(stream);
    ring->send(Slots{3, 4});  // the last place and the first
    ring->send(Slots{5});
    probe.open_gate(gate);
    probe.synchronize(stream);
    const auto found = ring->arrived();
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].by_layer, digests_of({3, 4}));
    EXPECT_EQ(found[1].by_layer, digests_of({5}));
    EXPECT_EQ(probe.events_shared(), 0U);
}

TEST_F(DigestRingTest, SeesWhatStandsBeforeItOnTheStreamAndNotWhatStandsBehind) {
    const Digests before = digests_of({0});
    ring->send(Slots{0});
    fill(block(0), 100, stream);
    ring->send(Slots{0});
    probe.synchronize(stream);
    const auto found = ring->arrived();
    EXPECT_EQ(found.at(0).by_layer, before);
    EXPECT_NE(found.at(1).by_layer, before);
}

TEST_F(DigestRingTest, WhereARefusedCallLeavesItNothingArrives) {
    probe.synchronize(stream);
    for (std::uint64_t call = 1; call <= 3; ++call) {  // the launches at the end and at the beginning, and the record
        ring.emplace(device, stream, std::vector{pool()}, kPlaces, kKey);
        ring->send(Slots{0, 1, 2});
        probe.synchronize(stream);
        ring->arrived();
        probe.refuse_call(call);
        EXPECT_THROW(ring->send(Slots{3, 4}), DeviceError);
        EXPECT_TRUE(probe.has_refused());
        probe.synchronize(stream);
        EXPECT_TRUE(ring->arrived().empty());
        EXPECT_TRUE(ring->done());
    }
}

TEST_F(DigestRingTest, FailedWorkIsReportedEachTime) {
    const GateHandle gate = probe.close_gate(stream);  // or else the record is refused as well
    probe.sim().fail_operation(1);
    ring->send(Slots{0});
    probe.open_gate(gate);
    EXPECT_THROW(probe.synchronize(stream), DeviceError);
    EXPECT_THROW(static_cast<void>(ring->arrived()), DeviceError);
    EXPECT_THROW(static_cast<void>(ring->arrived()), DeviceError);
    EXPECT_EQ(ring->free(), kPlaces - 1);
}

}  // namespace
}  // namespace kvfix
