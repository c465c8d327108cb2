// While a thread captures a CUDA graph as torch does by default, the driver refuses others what may disturb it, and the
// capture fails with it. No call of ours takes part, whichever thread makes it.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cuda_test.h"
#include "lanes/host_pool.h"
#include "lanes/marks.h"
#include "lanes/transfer_lane.h"

namespace kvfix::cuda {
namespace {

constexpr std::chrono::milliseconds kLong{20000};

class CudaCaptures : public CudaTest {
  protected:
    CudaCaptures() : device_(open_cuda_device(0)) { state().captured_elsewhere = true; }
    void TearDown() override {
        device_.reset();  // at its end, too
        EXPECT_FALSE(state().capture_spoilt);
        EXPECT_EQ(state().in_captures, std::vector<std::string>());
        EXPECT_EQ(fake::own_capture_mode(), 0) << "the thread's own mode is put back";
        state().captured_elsewhere = false;
    }
    CopySpan span() {
        return {reinterpret_cast<std::uintptr_t>(dst_.data()), reinterpret_cast<std::uintptr_t>(src_.data()),
                sizeof src_};
    }

    std::shared_ptr<Device> device_;
    std::array<int, 2> src_{1, 2};
    std::array<int, 2> dst_{};
};

TEST_F(CudaCaptures, WhoeverCallsTheDriverPlainlySpoilsThem) {
    const Driver driver(kLibrary);
    const EventHandle event = device_->create_event();
    EXPECT_EQ(driver.event_query.result(reinterpret_cast<Event>(event.value)), kErrorCaptureUnsupported);
    EXPECT_TRUE(state().capture_spoilt);
    EXPECT_EQ(state().in_captures, std::vector<std::string>{"cuEventQuery"});
    state().capture_spoilt = false;
    state().in_captures.clear();
}

TEST_F(CudaCaptures, ACallThatIsAllowedShowsAsWell) {
    const Driver driver(kLibrary);
    Stream stream = nullptr;
    driver.stream_create(&stream, kStreamNonBlocking);
    EXPECT_FALSE(state().capture_spoilt);
    EXPECT_EQ(state().in_captures, std::vector<std::string>{"cuStreamCreate"});
    state().in_captures.clear();
}

TEST_F(CudaCaptures, StreamsAndEventsTakeNoPart) {
    const StreamHandle stream = device_->create_stream();
    const EventHandle event = device_->create_event();
    device_->record(event, stream);
    EXPECT_TRUE(device_->done(event));
    device_->wait(event);
    device_->make_wait(stream, event);
    device_->synchronize(stream);
    device_->destroy_event(event);
    device_->destroy_stream(stream);
}

TEST_F(CudaCaptures, MemoryTakesNoPart) {
    void* const pinned = device_->map_pinned(4096);
    static_cast<void>(device_->device_address(pinned));
    device_->unmap_pinned(pinned, 4096);
    device_->release(device_->allocate(4096));
    device_->register_host(src_.data(), sizeof src_);
    device_->unregister_host(src_.data());
}

// Returns the driver's answer.
Result allocate_as_torch_does() {
    void* memory = nullptr;
    const Result result = fake::allocate_pinned(&memory, 64);
    std::free(memory);
    return result;
}

TEST_F(CudaCaptures, AnAllocationOfTorchsSpoilsThem) {
    EXPECT_EQ(allocate_as_torch_does(), kErrorCaptureUnsupported);
    EXPECT_TRUE(state().capture_spoilt);
    EXPECT_EQ(state().in_captures, std::vector<std::string>{"cuMemHostAlloc"});
    state().capture_spoilt = false;
    state().in_captures.clear();
}

TEST_F(CudaCaptures, AnAllocationOfTorchsOutsideOfThemTakesNoPart) {
    Result result = kErrorInvalidValue;
    device_->outside_captures([&] { result = allocate_as_torch_does(); });
    EXPECT_EQ(result, kSuccess);
    EXPECT_EQ(fake::own_capture_mode(), 0);
}

TEST_F(CudaCaptures, WorkThatFailsOutsideOfThemPutsTheModeAndTheContextBack) {
    constexpr int kThreadLocal = 1;
    const Context others = reinterpret_cast<Context>(0xD0);
    fake::own_capture_mode() = kThreadLocal;
    fake::current_context() = others;
    int within = -1;
    const auto fail = [&] {
        within = fake::own_capture_mode();
        throw std::bad_alloc();
    };
    EXPECT_THROW(device_->outside_captures(fail), std::bad_alloc);
    EXPECT_EQ(within, kCaptureRelaxed);
    EXPECT_EQ(fake::own_capture_mode(), kThreadLocal);
    EXPECT_EQ(fake::current_context(), others);
    fake::own_capture_mode() = 0;
    fake::current_context() = nullptr;
}

TEST_F(CudaCaptures, WorkTakesNoPart) {
    const StreamHandle stream = device_->create_stream();
    device_->copy(span(), stream);
    device_->copy_batch(std::array{span()}, SourceOrder::any, stream);
    device_->copy_rows({span().dst, sizeof src_, span().src, sizeof src_, sizeof src_, 1}, stream);
    const GraphHandle graph = device_->capture_copies(std::array{span()});
    device_->launch_graph(graph, stream);
    device_->destroy_graph(graph);
    device_->open_gate(device_->close_gate(stream));
}

TEST_F(CudaCaptures, ALaneTakesNoPartFromItsBeginToItsEnd) {
    const StreamHandle stream = device_->create_stream();
    const auto marks = std::make_shared<Marks>(device_, 4);
    TransferLane lane(device_, LaneConfig{});
    for (std::uint64_t job = 1; job <= 3; ++job) {
        EXPECT_EQ(lane.enqueue(job, {span()}, marks->set(stream)), LaneAnswer::taken);
        EXPECT_TRUE(lane.wait(job, kLong));
    }
    EXPECT_EQ(lane.take_ended().size(), 3U);
    EXPECT_EQ(dst_, src_);
    EXPECT_TRUE(lane.close(kLong));
}

TEST_F(CudaCaptures, AHostPoolTakesNoPart) {
    HostPool pool(device_, plan_host_pool(8192, 4096, 0, 8192, 4096), {});
    EXPECT_EQ(pool.bytes_pinned(), 8192U);
    pool.close();
}

}  // namespace
}  // namespace kvfix::cuda
