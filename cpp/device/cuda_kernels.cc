#include "device/cuda_kernels.h"

#include "device/check_call.h"
#include "kernels/embedded.h"

namespace kvfix::cuda {
namespace {

constexpr std::uint32_t kComputeMajorHopper = 9;

// One empty call of each kind, to list the names of the kernels.
template <std::size_t... Kinds>
auto calls_of_each_kind(std::index_sequence<Kinds...>) {
    return std::array{KernelCall(std::in_place_index<Kinds>)...};
}

}  // namespace

Kernels::Kernels(const PrimaryContext& context)
    : context_(context),
      gpu_{.multiprocessors = context.multiprocessors(),
           .copies_in_bulk = context.compute_major() >= kComputeMajorHopper} {
    if (embedded_kernels().empty()) {
        why_not_ = "this build has none; build it where nvcc 12 or newer is on the path";
        return;
    }
    const CurrentContext current = context_.use();
    const Driver& driver = context_.driver;
    const void* image = embedded_kernels().data();
    const Result answer = driver.module_load.result(&module_, image);
    if (answer == kErrorNoBinaryForGpu || answer == kErrorUnsupportedPtxVersion) {
        module_ = nullptr;
        why_not_ = std::string("this build has them for ") + kernels_built() + ", none of which runs on this GPU";
        return;
    }
    if (answer != kSuccess) {
        driver.module_load.fail(answer, &module_, image);
    }
    for (const KernelCall& call : calls_of_each_kind(std::make_index_sequence<std::variant_size_v<KernelCall>>())) {
        driver.module_function(&functions_[call.index()], module_, kernel_name(call));
    }
    if (gpu_.copies_in_bulk) {
        driver.function_set(functions_[KernelCall(CopyBlocks{}).index()], kFunctionSharedBytesMax, kCopySharedBytes);
    }
}

Kernels::~Kernels() {
    if (loaded()) {
        try {
            const CurrentContext current = context_.use();
            context_.driver.module_unload(module_);
        } catch (const DeviceError&) {  // the context is broken or gone, and the module with it
        }
    }
}

void Kernels::launch(const KernelCall& call, Stream stream) const { launch(call, launch_shape(call, gpu_), stream); }

void Kernels::launch(const KernelCall& call, const LaunchShape& shape, Stream stream) const {
    check_call(call);
    if (!loaded()) {
        throw DeviceError(std::string(kernel_name(call)) + ": no kernels: " + why_not_);
    }
    if (shape.empty()) {
        return;
    }
    // The driver copies the struct before it returns.
    const void* argument = std::visit([](const auto& one) -> const void* { return &one; }, call);
    std::array<void*, 1> arguments{const_cast<void*>(argument)};
    const CurrentContext current = context_.use();
    context_.driver.launch(functions_[call.index()], shape.blocks_x, shape.blocks_y, 1, shape.threads, 1, 1,
                           shape.shared_bytes, stream, arguments.data(), nullptr);
}

}  // namespace kvfix::cuda
