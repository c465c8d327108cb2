// Loading and starting the kernels. Their results are checked on a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda_test.h"
#include "kernels/embedded.h"

namespace kvfix::cuda {
namespace {

class CudaKernels : public CudaTest {
  protected:
    static FillWords fill(std::uint64_t count) { return {.words = nullptr, .count = count, .value = 7}; }

    Driver driver_{kLibrary};
    PrimaryContext context_{driver_, 0};
};

TEST_F(CudaKernels, AreAllLoadedBeforeAnyIsLaunched) {
    const Kernels kernels(context_);
    EXPECT_EQ(kernels.loaded(), !embedded_kernels().empty());
    EXPECT_EQ(std::ranges::count(state().calls, "cuModuleGetFunction"), kernels.loaded() ? 6 : 0);
}

TEST_F(CudaKernels, NoneForThisGpuIsNoError) {
    state().answers["cuModuleLoadData"] = kErrorNoBinaryForGpu;
    const Kernels kernels(context_);
    EXPECT_FALSE(kernels.loaded());
    const std::string error = error_of([&] { kernels.launch(fill(1), nullptr); });
    EXPECT_TRUE(error.starts_with("FillWords: no kernels: this build has ")) << error;
    EXPECT_FALSE(state().called("cuLaunchKernel"));
}

class CudaKernelsBuilt : public CudaKernels {
  protected:
    void SetUp() override {
        if (embedded_kernels().empty()) {
            GTEST_SKIP() << "this build has no kernels";
        }
    }
};

TEST_F(CudaKernelsBuilt, ABrokenModuleIsAnError) {
    state().answers["cuModuleLoadData"] = kErrorInvalidValue;
    EXPECT_TRUE(error_of([&] { const Kernels kernels(context_); }).starts_with("cuModuleLoadData("));
}

TEST_F(CudaKernelsBuilt, NoWorkIsNotLaunched) {
    const Kernels kernels(context_);
    kernels.launch(fill(0), nullptr);
    EXPECT_FALSE(state().called("cuLaunchKernel"));
    kernels.launch(fill(1), nullptr);
    EXPECT_TRUE(state().called("cuLaunchKernel"));
}

// A launch gets at most 48 KiB unless it asks for more.
TEST_F(CudaKernelsBuilt, CopiesGetTheSharedMemoryThatTheyAreLaunchedWith) {
    const Kernels kernels(context_);
    kernels.launch(CopyBlocks{.pairs = nullptr, .count = 1, .bytes = 16}, nullptr);
    EXPECT_EQ(state().shared_bytes, kCopySharedBytes);
    EXPECT_EQ(state().shared_bytes_max, static_cast<int>(kCopySharedBytes));
}

TEST_F(CudaKernelsBuilt, AnOlderGpuCopiesWithThreads) {
    state().compute_major = 8;
    const Kernels kernels(context_);
    kernels.launch(CopyBlocks{.pairs = nullptr, .count = 1, .bytes = 16}, nullptr);
    EXPECT_EQ(state().shared_bytes, 0U);
    EXPECT_EQ(state().shared_bytes_max, 0);
}

TEST_F(CudaKernelsBuilt, BadArgumentsAreRefusedBeforeTheLaunch) {
    const Kernels kernels(context_);
    EXPECT_TRUE(error_of([&] {
                    kernels.launch(CopyBlocks{.pairs = nullptr, .count = 1, .bytes = 24}, nullptr);
                }).starts_with("CopyBlocks: bytes is 24"));
    EXPECT_TRUE(error_of([&] {
                    kernels.launch(CopyBlocks{.pairs = nullptr, .count = 1, .bytes = 16, .sms = 0}, nullptr);
                }).starts_with("CopyBlocks: sms is 0"));
    EXPECT_TRUE(error_of([&] {
                    kernels.launch(CopyBlocks{.pairs = nullptr, .count = 1 << 20, .bytes = 1 << 30}, nullptr);
                }).starts_with("CopyBlocks: count is 1048576"));
    EXPECT_FALSE(state().called("cuLaunchKernel"));
}

}  // namespace
}  // namespace kvfix::cuda
