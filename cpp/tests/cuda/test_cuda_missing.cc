// A machine without a GPU: the program runs, and opening a GPU says what is missing.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "device/cuda_driver.h"
#include "kernels/embedded.h"

namespace kvfix {
namespace {

std::string error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "nothing was thrown";
}

TEST(CudaMissing, TheLibraryThatIsMissingIsNamed) {
    const std::string error = error_of([] { cuda::Driver("libcuda-absent.so.1"); });
    EXPECT_TRUE(error.starts_with("no CUDA driver: libcuda-absent.so.1: ")) << error;
    EXPECT_NE(error.find("usual cause: a machine without an NVIDIA GPU"), std::string::npos) << error;
}

TEST(CudaMissing, ALibraryThatIsNoDriverIsRefused) {
    const std::string error = error_of([] { cuda::Driver("libc.so.6"); });
    EXPECT_EQ(error, "no CUDA driver: the library that was found does not tell its version");
}

TEST(CudaMissing, OpeningAGpuSaysWhatIsMissing) {
    std::string error;
    try {
        const auto device = open_cuda_device(0);
        GTEST_SKIP() << "this machine has " << device->name();
    } catch (const DeviceError& refusal) {
        error = refusal.what();
    }
    // No library, or a library and no GPU.
    EXPECT_TRUE(error.starts_with("no CUDA driver") || error.starts_with("cuInit(0): ")) << error;
    EXPECT_NE(error.find("usual cause"), std::string::npos) << error;
    EXPECT_EQ(error_of([] { open_cuda_device(0); }), error) << "a second attempt tells the same";
}

TEST(CudaMissing, WhatTheKernelsWereBuiltForIsKnownWithoutAGpu) {
    EXPECT_EQ(embedded_kernels().empty(), std::string(kernels_built()) == "none") << kernels_built();
}

}  // namespace
}  // namespace kvfix
