// Common parts of the tests against the fake driver.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "device/cuda_copies.h"
#include "device/cuda_gates.h"
#include "device/cuda_graphs.h"
#include "device/cuda_kernels.h"
#include "fake_driver.h"

namespace kvfix::cuda {

constexpr const char* kLibrary = "libcuda.so.1";

class CudaTest : public testing::Test {
  protected:
    CudaTest() { fake::reset(); }

    static fake::State& state() { return fake::state(); }
    static void load() { const Driver driver(kLibrary); }
    static std::string error_of(const std::function<void()>& call) {
        try {
            call();
        } catch (const DeviceError& error) {
            return error.what();
        }
        return "nothing was thrown";
    }
};

}  // namespace kvfix::cuda
