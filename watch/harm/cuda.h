// The part of the driver that the programs of this folder call. They do not race: whatever hostrace changes in them is
// harm.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace harm {

constexpr std::size_t kPage = 4096;

template <typename... Arguments>
int tried(const char* name, Arguments... arguments) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    auto function = reinterpret_cast<int (*)(Arguments...)>(library == nullptr ? nullptr : dlsym(library, name));
    return function == nullptr ? -1 : function(arguments...);
}

template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
    if (const int result = tried(name, arguments...); result != 0) {
        std::printf("%s answers %d\n", name, result);
        std::exit(90);
    }
}

// One device, one stream of its own, and a gate on it that the host opens.
struct Cuda {
    Cuda() {
        int device = 0;
        call("cuInit", 0U);
        call("cuDeviceGet", &device, 0);
        call("cuDevicePrimaryCtxRetain", &context, device);
        use();
        call("cuStreamCreate", &stream, 1U);
        call("cuMemAlloc_v2", &memory, kBytes);
        gate = reinterpret_cast<volatile std::uint32_t*>(pinned(kPage));
        call("cuMemHostGetDevicePointer_v2", &gate_of_device, const_cast<std::uint32_t*>(gate), 0U);
    }
    // In each further thread, before its first call.
    void use() { call("cuCtxSetCurrent", context); }
    char* pinned(std::size_t bytes) {
        void* result = nullptr;
        call("cuMemHostAlloc", &result, bytes, 3U);
        return static_cast<char*>(result);
    }
    void pin(void* begin, std::size_t bytes) { call("cuMemHostRegister_v2", begin, bytes, 3U); }
    void close() { call("cuStreamWaitValue32_v2", stream, gate_of_device, ++number, 0U); }
    void open() { *gate = number; }
    void wait() { call("cuStreamSynchronize", stream); }
    void send(const void* from, std::size_t bytes) { call("cuMemcpyHtoDAsync_v2", memory, from, bytes, stream); }
    void fetch(void* to, std::size_t bytes) { call("cuMemcpyDtoHAsync_v2", to, memory, bytes, stream); }
    // As a batch of one, whose source is free when the call returns.
    void promise(const void* from, std::size_t bytes) {
        struct Attributes {
            int order;
            std::array<int, 4> hints;
            unsigned flags;
        } attributes{2, {}, 0};
        unsigned long long to = memory;
        auto source = reinterpret_cast<unsigned long long>(from);
        std::size_t first = 0;
        call("cuMemcpyBatchAsync_v2", &to, &source, &bytes, std::size_t{1}, &attributes, &first, std::size_t{1},
             stream);
    }
    void finish() {
        open();
        wait();
    }

    static constexpr std::size_t kBytes = std::size_t{1} << 20;
    void* context = nullptr;
    void* stream = nullptr;
    unsigned long long memory = 0;
    volatile std::uint32_t* gate = nullptr;
    unsigned long long gate_of_device = 0;
    std::uint32_t number = 0;
};

}  // namespace harm
