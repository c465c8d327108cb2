#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>

namespace kvfix::cuda {
namespace {

using GetProcAddress = Result (*)(const char* name, void** pointer, int version, std::uint64_t flags, int* status);

struct UsualCause {
    Result result;
    const char* cause;
};

constexpr std::array kUsualCauses{
    UsualCause{kErrorInvalidValue, "an address that is neither pinned nor device memory, or a length past its end"},
    UsualCause{kErrorOutOfMemory,
               "less memory is free than asked for; pinned memory also counts against the limit of "
               "the container"},
    UsualCause{kErrorNotInitialized, "the process was forked after CUDA had started; start it with spawn"},
    UsualCause{kErrorNoDevice, "a container without its GPUs, or CUDA_VISIBLE_DEVICES hides them"},
    UsualCause{kErrorInvalidHandle, "a stream or event that was destroyed, or belongs to another device"},
    UsualCause{kErrorIllegalAddress,
               "an earlier kernel or copy used memory that had been freed; nothing works in this "
               "process from now on"},
    UsualCause{kErrorHostMemoryAlreadyRegistered,
               "another library pinned it, or it shares a page with something pinned"},
    UsualCause{kErrorHostMemoryNotRegistered, "it was never pinned, or has been unpinned already"},
    UsualCause{kErrorSystemDriverMismatch,
               "the driver was updated while the kernel module of the old one is loaded; reboot"},
};

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void* open_library(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* why = dlerror();
        throw DeviceError(
            std::string("no CUDA driver: ") + (why == nullptr ? library : why) +
            "; usual cause: a machine without an NVIDIA GPU, or a container that was started without access "
            "to it");
    }
    return handle;
}

int driver_version(void* library) {
    int version = 0;
    const auto get = reinterpret_cast<Result (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
    if (get == nullptr || get(&version) != kSuccess) {
        throw DeviceError("no CUDA driver: the library that was found does not tell its version");
    }
    if (version < kVersion12_0) {
        throw DeviceError("the CUDA driver is of CUDA " + version_text(version) +
                          ", at least 12.0 is needed; update the NVIDIA driver to 525 or newer");
    }
    return version;
}

// Looks up entry points by the version whose arguments we declare.
class Loader {
  public:
    Loader(void* library, int version)
        : get_(reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"))), version_(version) {
        if (get_ == nullptr) {
            throw DeviceError("the CUDA driver " + version_text(version) + " has no cuGetProcAddress_v2");
        }
    }

    template <typename... Args>
    void require(Call<Args...>& call) const {
        call.set(required(call.name()));
    }
    void* required(const char* name) const {
        void* pointer = find(name, kVersion12_0);
        if (pointer == nullptr) {
            throw DeviceError("the CUDA driver " + version_text(version_) + " has no " + name +
                              "; usual cause: a stub library in place of the driver's own libcuda.so.1");
        }
        return pointer;
    }
    // Returns null if the driver has no such function with the arguments of this version.
    void* find(const char* name, int version) const {
        void* pointer = nullptr;
        if (version > version_ || get_(name, &pointer, version, kProcAddressLegacyStream, nullptr) != kSuccess) {
            return nullptr;
        }
        return pointer;
    }

  private:
    GetProcAddress get_;
    int version_;
};

}  // namespace

std::string in_hex(std::uintptr_t value) {
    std::array<char, 2 + 2 * sizeof value + 1> text{};
    std::snprintf(text.data(), text.size(), "0x%lx", value);
    return text.data();
}

void ErrorTexts::fail(const std::string& call, Result result) const {
    const char* error = nullptr;
    const char* meaning = nullptr;
    std::string message = call + ": ";
    if (name(result, &error) == kSuccess && text(result, &meaning) == kSuccess) {
        message += std::string(error) + " (" + std::to_string(result) + "), " + meaning;
    } else {
        message += "error " + std::to_string(result) + ", which the driver has no name for";
    }
    for (const UsualCause& usual : kUsualCauses) {
        if (usual.result == result) {
            message += std::string("; usual cause: ") + usual.cause;
        }
    }
    throw DeviceError(message);
}

Driver::Driver(const char* library) {
    void* handle = open_library(library);
    version = driver_version(handle);
    const Loader loader(handle, version);
    errors.name = reinterpret_cast<decltype(errors.name)>(loader.required("cuGetErrorName"));
    errors.text = reinterpret_cast<decltype(errors.text)>(loader.required("cuGetErrorString"));
    const auto require = [&](auto&... calls) { (loader.require(calls), ...); };
    require(init, device_count, device, device_name, device_attribute);
    require(primary_retain, primary_release, get_current, set_current);
    require(stream_create, stream_destroy, stream_synchronize, stream_wait_event, stream_wait_value);
    require(event_create, event_destroy, event_record, event_query, event_synchronize);
    require(allocate, free, host_register, host_unregister, host_device_pointer);
    require(exchange_capture_mode, begin_capture, end_capture, graph_destroy, graph_instantiate, graph_launch,
            graph_exec_destroy);
    require(copy, copy_2d, module_load, module_unload, module_function, function_set, launch);
    copy_batch.set(loader.find(copy_batch.name(), kVersion13_0));
    if (!copy_batch.present()) {
        copy_batch_12.set(loader.find(copy_batch_12.name(), kVersion12_8));
    }
    init(0);
}

const Driver& driver() {
    static const Driver loaded("libcuda.so.1");
    return loaded;
}

}  // namespace kvfix::cuda
