// Streams and memory from the CUDA runtime, like torch's: one context, one order.
#include <cuda_runtime_api.h>

#include "checks.h"

namespace kvfix {
namespace {

constexpr int kCount = 1 << 20;

__global__ void write_multiples(int* words, int factor) {
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < kCount;
         i += static_cast<int>(gridDim.x * blockDim.x)) {
        words[i] = i * factor;
    }
}

void check_stream(Checks& checks, cudaStream_t stream, const std::string& what) {
    Device& device = *checks.device;
    const StreamHandle handle{reinterpret_cast<std::uintptr_t>(stream)};
    int* words = nullptr;
    checks.expect(cudaMalloc(&words, kCount * sizeof(int)) == cudaSuccess, "the runtime allocates");
    write_multiples<<<16, 128, 0, stream>>>(words, 1);  // loads the kernel, so it must not be behind a gate
    device.synchronize(handle);

    const PinnedMemory pinned(checks.device, kCount * sizeof(int));
    const GateHandle gate = device.close_gate(handle);
    write_multiples<<<16, 128, 0, stream>>>(words, 3);
    device.copy({pinned.address(), reinterpret_cast<std::uintptr_t>(words), pinned.bytes()}, handle);
    checks.expect(cudaStreamQuery(stream) == cudaErrorNotReady, "our gate holds " + what);
    static_cast<void>(cudaGetLastError());  // the runtime keeps that answer as if it were an error
    device.open_gate(gate);
    device.synchronize(handle);
    const auto* read = static_cast<const int*>(pinned.data());
    bool right = true;
    for (int i = 0; i < kCount; ++i) {
        right = right && read[i] == i * 3;
    }
    checks.expect(right, "our copy runs behind the runtime's kernel on " + what);
    checks.expect(cudaGetLastError() == cudaSuccess && cudaFree(words) == cudaSuccess, "the runtime sees no error");
}

}  // namespace

void check_runtime(Checks& checks) {
    cudaStream_t blocking = nullptr;
    cudaStream_t free_running = nullptr;
    cudaStreamCreate(&blocking);
    cudaStreamCreateWithFlags(&free_running, cudaStreamNonBlocking);
    check_stream(checks, blocking, "a stream of the runtime");
    check_stream(checks, free_running, "a non-blocking stream of the runtime");
    check_stream(checks, nullptr, "the default stream");
    check_stream(checks, cudaStreamPerThread, "the default stream of this thread");
    cudaStreamDestroy(blocking);
    cudaStreamDestroy(free_running);
}

}  // namespace kvfix
