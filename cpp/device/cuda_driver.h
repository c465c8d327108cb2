// The driver library, loaded at run time, so that one build also imports on a machine without a GPU. If the driver
// refuses a call, we throw a DeviceError with the call, its arguments, the driver's text and the usual cause.
#pragma once

#include <string>
#include <type_traits>

#include "device/cuda_api.h"
#include "device/device.h"

namespace kvfix::cuda {

struct ErrorTexts {
    Result (*name)(Result, const char**) = nullptr;
    Result (*text)(Result, const char**) = nullptr;

    // `call` is the text of the call as it was made.
    [[noreturn]] void fail(const std::string& call, Result result) const;
};

std::string in_hex(std::uintptr_t value);

template <typename T>
std::string argument_text(T argument) {
    if constexpr (std::is_same_v<T, const char*>) {
        return argument;
    } else if constexpr (std::is_pointer_v<T>) {
        return in_hex(reinterpret_cast<std::uintptr_t>(argument));
    } else if constexpr (std::is_same_v<T, Address>) {
        return in_hex(argument);
    } else {
        return std::to_string(argument);
    }
}

// One entry point. Calling it throws if the driver refuses. result() returns the driver's answer instead, for answers
// that are no errors.
template <typename... Args>
class Call {
  public:
    using Pointer = Result (*)(Args...);

    Call(const char* name, const ErrorTexts& errors) : name_(name), errors_(errors) {}

    void operator()(Args... args) const {
        if (const Result answer = pointer_(args...); answer != kSuccess) [[unlikely]] {
            fail(answer, args...);
        }
    }
    Result result(Args... args) const { return pointer_(args...); }
    [[noreturn]] void fail(Result answer, Args... args) const {
        std::string list;
        ((list += (list.empty() ? "" : ", ") + argument_text(args)), ...);
        errors_.fail(std::string(name_) + "(" + list + ")", answer);
    }

    bool present() const { return pointer_ != nullptr; }
    const char* name() const { return name_; }
    void set(void* pointer) { pointer_ = reinterpret_cast<Pointer>(pointer); }

  private:
    const char* name_;
    const ErrorTexts& errors_;
    Pointer pointer_ = nullptr;
};

class Driver {
  public:
    // Throws a DeviceError that names what is missing: the library, a recent driver, or a GPU.
    explicit Driver(const char* library);
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    ErrorTexts errors;
    int version = 0;

    Call<unsigned> init{"cuInit", errors};
    Call<int*> device_count{"cuDeviceGetCount", errors};
    Call<DeviceNumber*, int> device{"cuDeviceGet", errors};
    Call<char*, int, DeviceNumber> device_name{"cuDeviceGetName", errors};
    Call<int*, int, DeviceNumber> device_attribute{"cuDeviceGetAttribute", errors};

    Call<Context*, DeviceNumber> primary_retain{"cuDevicePrimaryCtxRetain", errors};
    Call<DeviceNumber> primary_release{"cuDevicePrimaryCtxRelease", errors};
    Call<Context*> get_current{"cuCtxGetCurrent", errors};
    Call<Context> set_current{"cuCtxSetCurrent", errors};

    Call<Stream*, unsigned> stream_create{"cuStreamCreate", errors};
    Call<Stream> stream_destroy{"cuStreamDestroy", errors};
    Call<Stream> stream_synchronize{"cuStreamSynchronize", errors};
    Call<Stream, Event, unsigned> stream_wait_event{"cuStreamWaitEvent", errors};
    Call<Stream, Address, std::uint32_t, unsigned> stream_wait_value{"cuStreamWaitValue32", errors};

    Call<Event*, unsigned> event_create{"cuEventCreate", errors};
    Call<Event> event_destroy{"cuEventDestroy", errors};
    Call<Event, Stream> event_record{"cuEventRecord", errors};
    Call<Event> event_query{"cuEventQuery", errors};
    Call<Event> event_synchronize{"cuEventSynchronize", errors};

    Call<Address*, std::size_t> allocate{"cuMemAlloc", errors};
    Call<Address> free{"cuMemFree", errors};
    Call<void*, std::size_t, unsigned> host_register{"cuMemHostRegister", errors};
    Call<void*> host_unregister{"cuMemHostUnregister", errors};
    Call<Address*, void*, unsigned> host_device_pointer{"cuMemHostGetDevicePointer", errors};

    Call<Address, Address, std::size_t, Stream> copy{"cuMemcpyAsync", errors};
    Call<const Copy2d*, Stream> copy_2d{"cuMemcpy2DAsync", errors};
    // At most one of these two is present: CUDA 13 dropped the index of the failing copy.
    Call<Address*, Address*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t, Stream> copy_batch{
        "cuMemcpyBatchAsync", errors};
    Call<Address*, Address*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t, std::size_t*,
         Stream>
        copy_batch_12{"cuMemcpyBatchAsync", errors};

    Call<int*> exchange_capture_mode{"cuThreadExchangeStreamCaptureMode", errors};
    Call<Stream, int> begin_capture{"cuStreamBeginCapture", errors};
    Call<Stream, Graph*> end_capture{"cuStreamEndCapture", errors};
    Call<Graph> graph_destroy{"cuGraphDestroy", errors};
    Call<GraphExec*, Graph, unsigned long long> graph_instantiate{"cuGraphInstantiateWithFlags", errors};
    Call<GraphExec, Stream> graph_launch{"cuGraphLaunch", errors};
    Call<GraphExec> graph_exec_destroy{"cuGraphExecDestroy", errors};

    Call<Module*, const void*> module_load{"cuModuleLoadData", errors};
    Call<Module> module_unload{"cuModuleUnload", errors};
    Call<Function*, Module, const char*> module_function{"cuModuleGetFunction", errors};
    Call<Function, int, int> function_set{"cuFuncSetAttribute", errors};
    Call<Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**> launch{
        "cuLaunchKernel", errors};
};

// The machine's driver. The first call loads it, and it is never unloaded, because the library keeps threads of its
// own.
const Driver& driver();

}  // namespace kvfix::cuda
