// Opening a GPU, and the errors when the driver refuses.
#include <gtest/gtest.h>

#include "cuda_test.h"

namespace kvfix::cuda {
namespace {

class CudaDriver : public CudaTest {};

TEST_F(CudaDriver, AnOldDriverIsNamedWithTheOldestThatServes) {
    state().version = 11080;
    EXPECT_EQ(error_of([] { load(); }),
              "the CUDA driver is of CUDA 11.8, at least 12.0 is needed; update the NVIDIA driver to 525 or newer");
}

TEST_F(CudaDriver, AnEntryPointThatIsMissingIsNamed) {
    state().absent = "cuStreamWaitValue32";
    EXPECT_EQ(error_of([] { load(); }),
              "the CUDA driver 13.0 has no cuStreamWaitValue32; usual cause: a stub library in "
              "place of the driver's own libcuda.so.1");
}

TEST_F(CudaDriver, ADriverWithoutAGpuSaysWhy) {
    state().answers["cuInit"] = kErrorNoDevice;
    EXPECT_EQ(error_of([] { load(); }),
              "cuInit(0): CUDA_ERROR_NO_DEVICE (100), what the driver says; usual cause: a "
              "container without its GPUs, or CUDA_VISIBLE_DEVICES hides them");
}

TEST_F(CudaDriver, AnOrdinalPastTheEndIsShownWithTheCount) {
    state().gpus = 2;
    const Driver driver(kLibrary);
    EXPECT_EQ(
        error_of([&] { PrimaryContext(driver, 2); }),
        "cuda:2 does not exist: this process sees 2 GPUs, counted from 0; usual cause: CUDA_VISIBLE_DEVICES hides "
        "the others");
    EXPECT_TRUE(error_of([&] { PrimaryContext(driver, -1); }).starts_with("cuda:-1 does not exist"));
    EXPECT_EQ(state().contexts_retained, 0);
}

TEST_F(CudaDriver, ARefusalShowsTheCallItsArgumentsAndTheDriversText) {
    const Driver driver(kLibrary);
    state().answers["cuMemcpyAsync"] = 719;
    EXPECT_EQ(error_of([&] { driver.copy(0xabc0, 0x1000, 64, reinterpret_cast<Stream>(0x20)); }),
              "cuMemcpyAsync(0xabc0, 0x1000, 64, 0x20): CUDA_ERROR_OF_TEST (719), what the driver says");
    state().answers["cuMemcpyAsync"] = 999;
    EXPECT_EQ(error_of([&] { driver.copy(0xabc0, 0x1000, 64, nullptr); }),
              "cuMemcpyAsync(0xabc0, 0x1000, 64, 0x0): error 999, which the driver has no name for");
}

TEST_F(CudaDriver, TheThreadsOwnContextIsPutBack) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    auto* const other = reinterpret_cast<Context>(0xB0);
    for (Context before : {static_cast<Context>(nullptr), other}) {
        fake::current_context() = before;
        {
            const CurrentContext current = context.use();
            EXPECT_EQ(fake::current_context(), fake::primary_context());
        }
        EXPECT_EQ(fake::current_context(), before);
    }
}

TEST_F(CudaDriver, TheContextIsPutBackAfterARefusalToo) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    state().answers["cuMemcpyAsync"] = kErrorInvalidValue;
    EXPECT_NE(error_of([&] { Copies(context).one({1, 2, 3}, nullptr); }).find("neither pinned nor device memory"),
              std::string::npos);
    EXPECT_EQ(fake::current_context(), nullptr);
}

TEST_F(CudaDriver, AContextThatIsCurrentIsLeftAlone) {
    const Driver driver(kLibrary);
    const PrimaryContext context(driver, 0);
    fake::current_context() = fake::primary_context();
    {
        const CurrentContext current = context.use();
    }
    EXPECT_FALSE(state().called("cuCtxSetCurrent"));
}

TEST_F(CudaDriver, AnOpenDeviceTellsWhatItIs) {
    {
        const auto device = open_cuda_device(0);
        EXPECT_EQ(device->name(), "cuda:0 Fake GPU");
        EXPECT_FALSE(device->simulated());
        EXPECT_TRUE(device->has_batched_copy());
        EXPECT_EQ(state().contexts_retained, 1);
    }
    EXPECT_EQ(state().contexts_retained, 0);
    EXPECT_TRUE(state().registered.empty());
}

}  // namespace
}  // namespace kvfix::cuda
