// Gates: what holds a stream, and when a word may serve again.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "cuda_test.h"

namespace kvfix::cuda {
namespace {

constexpr std::size_t kGates = 64;

class CudaGates : public CudaTest {
  protected:
    const fake::StreamWait& last_wait() { return state().waits.back(); }

    Stream stream_ = reinterpret_cast<Stream>(0x20);
    Driver driver_{kLibrary};
    PrimaryContext context_{driver_, 0};
    PinnedMaps maps_{context_};
    GatePool gates_{context_, maps_};
};

TEST_F(CudaGates, AStreamIsHeldUntilItsGateIsOpened) {
    const GateHandle gate = gates_.close(stream_);
    EXPECT_EQ(last_wait().stream, stream_);
    EXPECT_EQ(last_wait().flags, kWaitUntilAtLeast);
    EXPECT_FALSE(last_wait().passed());
    gates_.open(gate);
    EXPECT_TRUE(last_wait().passed());
}

TEST_F(CudaGates, OpeningCallsNoDriver) {
    const GateHandle gate = gates_.close(stream_);
    state().calls.clear();
    gates_.open(gate);
    EXPECT_TRUE(state().calls.empty());
}

TEST_F(CudaGates, EachClosedGateHasAWordOfItsOwn) {
    std::vector<GateHandle> closed;
    std::set<const std::uint32_t*> words;
    for (std::size_t i = 0; i < kGates; ++i) {
        closed.push_back(gates_.close(stream_));
        words.insert(last_wait().word);
    }
    EXPECT_EQ(words.size(), kGates);
    EXPECT_TRUE(error_of([&] { gates_.close(stream_); }).starts_with("close_gate: all 64 gates are closed"));
    // The stream waits at the first gate, so it has not passed the opened one behind it.
    gates_.open(closed[1]);
    EXPECT_TRUE(error_of([&] { gates_.close(stream_); }).starts_with("close_gate: all 64 gates are closed"));
    gates_.open(closed[0]);
    gates_.close(stream_);
}

TEST_F(CudaGates, AGateIsOpenedOnceEvenWhenItsWordServesAgain) {
    const GateHandle first = gates_.close(stream_);
    gates_.open(first);
    EXPECT_TRUE(error_of([&] { gates_.open(first); }).ends_with("it is not closed; usual cause: opened twice"));
    const GateHandle second = gates_.close(stream_);
    EXPECT_EQ(state().waits[0].word, state().waits[1].word);
    EXPECT_NE(first.value, second.value);
    EXPECT_NE(error_of([&] { gates_.open(first); }), "nothing was thrown");
    EXPECT_FALSE(last_wait().passed()) << "the handle of an earlier use opens nothing";
    gates_.open(second);
    EXPECT_NE(error_of([&] { gates_.open({0}); }), "nothing was thrown");
    EXPECT_NE(error_of([&] { gates_.open({255}); }), "nothing was thrown");
}

TEST_F(CudaGates, AStreamIsNotLeftHeldWhenTheGateCannotBeWatched) {
    state().answers["cuEventRecord"] = kErrorInvalidHandle;
    EXPECT_NE(error_of([&] { gates_.close(stream_); }).find("a stream or event that was destroyed"), std::string::npos);
    EXPECT_TRUE(last_wait().passed());
    const std::uint32_t* unwatched = last_wait().word;
    state().answers.clear();
    gates_.close(stream_);
    EXPECT_NE(last_wait().word, unwatched) << "nothing tells when the wait on that word has passed";
}

TEST_F(CudaGates, APoolThatGoesOpensItsGatesAndLeavesWordsThatMayStillBeRead) {
    auto pool = std::make_unique<GatePool>(context_, maps_);
    const std::size_t registered = state().registered.size();
    pool->close(stream_);
    state().answers["cuEventSynchronize"] = kErrorIllegalAddress;
    pool.reset();
    EXPECT_TRUE(last_wait().passed());
    EXPECT_EQ(state().registered.size(), registered);
    state().answers.clear();
}

}  // namespace
}  // namespace kvfix::cuda
