// What RAPIDS mended in the summer of 2026, as programs of its memory manager: `rapids NAME before|after ROUNDS` says in
// how many rounds the device had wrong bytes. From librmm 26.10 on, a copy to the device may read its source when the
// stream comes to it. Callers had relied on that it is read in the call.
#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

void check(cudaError_t error) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
        std::exit(90);
    }
}

void wait(cudaStream_t stream) { check(cudaStreamSynchronize(stream)); }

// What runs next has the stack, and the heap, of what ran before.
[[gnu::noinline]] void run_on(std::size_t heap_bytes = 0) {
    std::array<char, 16384> stack;
    std::vector<char> heap(heap_bytes, 'x');
    stack.fill('x');
    asm volatile("" : : "r"(stack.data()), "r"(heap.data()) : "memory");
}

template <typename T>
bool holds(const void* device, const std::vector<T>& expected) {
    std::vector<T> found(expected.size());
    check(cudaMemcpy(found.data(), device, found.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return found == expected;
}

// rmm#2526: the constructor takes its value by reference, and lets a temporary pass.
using Scalar = rmm::device_scalar<double>;
[[gnu::noinline]] std::unique_ptr<Scalar> made_of_a_copy(double value, cudaStream_t stream) {
    return std::make_unique<Scalar>(value, stream);
}
bool scalar_of_a_temporary(bool mended, int round, cudaStream_t stream) {
    const double value = round + 0.5;
    const auto scalar = mended ? std::make_unique<Scalar>(value, stream) : made_of_a_copy(value, stream);
    run_on();
    wait(stream);
    return holds(scalar->data(), std::vector{value});
}

// cuopt#1759: views of the routes are copied one by one from a variable of the loop. They are staged side by side now.
struct View {
    std::size_t begin, end;
    bool operator==(const View&) const = default;
};
[[gnu::noinline]] void set_view(rmm::device_uvector<View>& views, std::size_t at, View view, cudaStream_t stream) {
    views.set_element_async(at, view, stream);
}
bool views_of_a_loop(bool mended, int round, cudaStream_t stream) {
    constexpr std::size_t kRoutes = 8;
    std::vector<View> expected;
    expected.reserve(kRoutes);
    rmm::device_uvector<View> views(kRoutes, stream);
    for (std::size_t at = 0; at < kRoutes; ++at) {
        expected.push_back({at, at + static_cast<std::size_t>(round)});
        if (mended) {
            views.set_element_async(at, expected.back(), stream);
        } else {
            set_view(views, at, expected.back(), stream);
        }
    }
    run_on();
    wait(stream);
    return holds(views.data(), expected);
}

// cudf#23718: a function gives back device memory that is filled from a vector of its own. It waits now.
constexpr std::size_t kNumbers = 20'000;
[[gnu::noinline]] rmm::device_buffer filled(bool mended, int round, cudaStream_t stream) {
    const std::vector<int> numbers(kNumbers, round);
    rmm::device_buffer made(numbers.data(), kNumbers * sizeof(int), stream);
    if (mended) {
        wait(stream);
    }
    return made;
}
bool vector_of_a_function(bool mended, int round, cudaStream_t stream) {
    const rmm::device_buffer made = filled(mended, round, stream);
    run_on(kNumbers * sizeof(int));
    wait(stream);
    return holds(made.data(), std::vector<int>(kNumbers, round));
}

// rapidsmpf#1101: the source ends with its block. An event behind the copy is waited for now.
bool vector_of_a_block(bool mended, int round, cudaStream_t stream) {
    constexpr std::size_t kFew = 1000;
    std::unique_ptr<rmm::device_buffer> made;
    {
        const std::vector<int> numbers(kFew, round);
        made = std::make_unique<rmm::device_buffer>(numbers.data(), kFew * sizeof(int), stream);
        if (mended) {
            cudaEvent_t copied = nullptr;
            check(cudaEventCreate(&copied));
            check(cudaEventRecord(copied, stream));
            check(cudaEventSynchronize(copied));
            check(cudaEventDestroy(copied));
        }
    }
    run_on(kFew * sizeof(int));
    wait(stream);
    return holds(made->data(), std::vector<int>(kFew, round));
}

}  // namespace

int main(int count, char** arguments) {
    const std::map<std::string, bool (*)(bool, int, cudaStream_t)> programs{
        {"scalar_of_a_temporary", scalar_of_a_temporary},
        {"views_of_a_loop", views_of_a_loop},
        {"vector_of_a_function", vector_of_a_function},
        {"vector_of_a_block", vector_of_a_block},
    };
    if (count != 4) {
        return 2;
    }
    // The default frees memory by a call that waits for the device.
    rmm::mr::cuda_async_memory_resource memory;
    rmm::mr::set_current_device_resource(memory);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int wrong = 0;
    for (int round = 1; round <= std::atoi(arguments[3]); ++round) {
        wrong += programs.at(arguments[1])(std::string(arguments[2]) == "after", round, stream) ? 0 : 1;
    }
    std::printf("%d\n", wrong);
    return 0;
}
