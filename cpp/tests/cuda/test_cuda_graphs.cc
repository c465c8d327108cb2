// A graph of copies: captured without running, launched with what the sources hold by then, and freed without a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "cuda_test.h"

namespace kvfix::cuda {
namespace {

class CudaGraphs : public CudaTest {
  protected:
    CudaGraphs() : device_(open_cuda_device(0)) {}

    CopySpan span() {
        return {reinterpret_cast<std::uintptr_t>(dst_.data()), reinterpret_cast<std::uintptr_t>(src_.data()),
                sizeof src_};
    }

    std::shared_ptr<Device> device_;
    StreamHandle stream_ = device_->create_stream();
    std::array<int, 2> src_{1, 2};
    std::array<int, 2> dst_{};
};

TEST_F(CudaGraphs, CapturingRunsNothingAndEachLaunchReadsTheSourceAnew) {
    const GraphHandle graph = device_->capture_copies(std::array{span()});
    EXPECT_EQ(dst_, (std::array{0, 0}));
    device_->launch_graph(graph, stream_);
    EXPECT_EQ(dst_, (std::array{1, 2}));
    src_ = {3, 4};
    device_->launch_graph(graph, stream_);
    EXPECT_EQ(dst_, (std::array{3, 4}));
    device_->destroy_graph(graph);
    EXPECT_EQ(state().graphs, 0U);
}

TEST_F(CudaGraphs, OtherThreadsMayCallTheDriverWhileOneCaptures) {
    device_->destroy_graph(device_->capture_copies(std::array{span()}));
    EXPECT_EQ(state().capture_mode, kCaptureThreadLocal);
}

TEST_F(CudaGraphs, AQueryThatIsRefusedIsNoEnd) {
    const EventHandle event = device_->create_event();
    device_->record(event, stream_);
    state().answers = {{"cuEventQuery", kErrorCaptureUnsupported}};
    EXPECT_FALSE(device_->done(event));
    state().answers = {{"cuEventQuery", kErrorIllegalAddress}};
    EXPECT_TRUE(error_of([&] { device_->done(event); }).starts_with("cuEventQuery"));
    state().answers.clear();
    EXPECT_TRUE(device_->done(event));
}

TEST_F(CudaGraphs, NothingIsLeftOfACaptureThatFails) {
    for (const char* call :
         {"cuStreamBeginCapture", "cuMemcpyAsync", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"}) {
        state().calls.clear();
        state().answers = {{call, kErrorInvalidValue}};
        EXPECT_TRUE(error_of([&] { device_->capture_copies(std::array{span()}); }).starts_with(call)) << call;
        EXPECT_EQ(state().graphs, 0U) << call;
        EXPECT_TRUE(state().called("cuStreamDestroy")) << call;
    }
}

TEST_F(CudaGraphs, ACaptureThatFailsIsEndedBeforeItsStreamGoes) {
    state().answers["cuMemcpyAsync"] = kErrorInvalidValue;
    EXPECT_NE(error_of([&] { device_->capture_copies(std::array{span()}); }), "nothing was thrown");
    EXPECT_EQ(state().capturing, nullptr);
    EXPECT_LT(std::ranges::find(state().calls, "cuStreamEndCapture"),
              std::ranges::find(state().calls, "cuStreamDestroy"));
}

}  // namespace
}  // namespace kvfix::cuda
