// Pinned memory: in whole pages, and kept if the driver does not let go of it.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "cuda_test.h"

namespace kvfix::cuda {
namespace {

constexpr std::size_t kBytes = 5000;  // no multiple of a page

std::size_t whole_pages() {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return (kBytes / page + 1) * page;
}

class CudaMemory : public CudaTest {
  protected:
    Driver driver_{kLibrary};
    PrimaryContext context_{driver_, 0};
    PinnedMaps maps_{context_};
};

bool mapped(void* memory) { return msync(memory, kBytes, MS_ASYNC) == 0; }

TEST_F(CudaMemory, IsRegisteredInWholePagesAndZeroed) {
    auto* memory = static_cast<std::byte*>(maps_.map(kBytes));
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    EXPECT_EQ(state().registered, (std::map<std::uintptr_t, std::size_t>{{address, whole_pages()}}));
    EXPECT_EQ(state().register_flags, kRegisterPortable | kRegisterDeviceMap);
    EXPECT_TRUE(std::ranges::all_of(std::span(memory, kBytes), [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_EQ(device_address(context_, memory), address);
    maps_.unmap(memory, kBytes);
    EXPECT_TRUE(state().registered.empty());
    EXPECT_FALSE(mapped(memory));
}

TEST_F(CudaMemory, NothingStaysMappedWhenItCannotBeRegistered) {
    state().answers["cuMemHostRegister"] = kErrorOutOfMemory;
    const std::string error = error_of([&] { maps_.map(kBytes); });
    EXPECT_NE(error.find(", " + std::to_string(whole_pages()) + ", 3): CUDA_ERROR_OF_TEST (2)"), std::string::npos)
        << error;
    EXPECT_NE(error.find("usual cause: less memory is free"), std::string::npos) << error;
}

TEST_F(CudaMemory, SizesThatCannotBeMappedAreShown) {
    EXPECT_TRUE(error_of([&] { maps_.map(0); }).starts_with("map_pinned: no 0 bytes of address space"));
    EXPECT_FALSE(state().called("cuMemHostRegister"));
}

TEST_F(CudaMemory, IsUnmappedOnceAndWithTheSizeItHas) {
    void* memory = maps_.map(kBytes);
    EXPECT_TRUE(error_of([&] { maps_.unmap(memory, 4096); }).ends_with(", 4096): 5000 bytes were mapped"));
    maps_.unmap(memory, kBytes);
    EXPECT_TRUE(error_of([&] { maps_.unmap(memory, kBytes); }).ends_with("not mapped here, or unmapped already"));
}

TEST_F(CudaMemory, IsKeptWhenTheDriverDoesNotLetGo) {
    void* memory = maps_.map(kBytes);
    state().answers["cuMemHostUnregister"] = kErrorIllegalAddress;
    EXPECT_NE(error_of([&] { maps_.unmap(memory, kBytes); }), "nothing was thrown");
    EXPECT_TRUE(mapped(memory));
    EXPECT_EQ(munmap(memory, kBytes), 0);
}

}  // namespace
}  // namespace kvfix::cuda
