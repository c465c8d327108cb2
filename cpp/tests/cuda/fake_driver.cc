#include "fake_driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake_captures.h"
#include "fake_handles.h"

namespace kvfix::fake {
namespace {

using cuda::Address;
using cuda::Context;
using cuda::Copy2d;
using cuda::CopyAttributes;
using cuda::Event;
using cuda::Function;
using cuda::Graph;
using cuda::GraphExec;
using cuda::kSuccess;
using cuda::Module;
using cuda::Result;
using cuda::Stream;

std::mutex mutex;
State current;
Handles handles;

// Every function begins here. The call is recorded, and a test may have set an answer for it.
Result answer(const char* name) {
    const std::lock_guard lock(mutex);
    current.calls.emplace_back(name);
    if (current.captured_elsewhere && own_capture_mode() != cuda::kCaptureRelaxed && !is_for_everybody(name)) {
        current.in_captures.emplace_back(name);
        if (may_disturb_captures(name)) {
            current.capture_spoilt = true;
            return cuda::kErrorCaptureUnsupported;
        }
    }
    const auto found = current.answers.find(name);
    return found == current.answers.end() ? kSuccess : found->second;
}

// Makes `work` the body of the entry point `name`.
template <typename Work>
Result answered(const char* name, const Work& work) {
    const Result result = answer(name);
    if (result == kSuccess) {
        const std::lock_guard lock(mutex);
        work();
    }
    return result;
}

Result get_error_name(Result result, const char** name) {
    *name = result == cuda::kErrorNoDevice ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_TEST";
    return result < 999 ? kSuccess : cuda::kErrorInvalidValue;
}
Result get_error_string(Result, const char** text) {
    *text = "what the driver says";
    return kSuccess;
}

Result init(unsigned) { return answer("cuInit"); }
Result device_count(int* count) {
    return answered("cuDeviceGetCount", [&] { *count = current.gpus; });
}
Result device(int* number, int ordinal) {
    return answered("cuDeviceGet", [&] { *number = ordinal; });
}
Result device_name(char* name, int bytes, int) {
    return answered("cuDeviceGetName", [&] { std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes)); });
}
Result device_attribute(int* value, int which, int) {
    return answered("cuDeviceGetAttribute",
                    [&] { *value = which == cuda::kAttributeComputeMajor ? current.compute_major : 4; });
}
Result primary_retain(Context* context, int) {
    return answered("cuDevicePrimaryCtxRetain", [&] {
        ++current.contexts_retained;
        *context = primary_context();
    });
}
Result primary_release(int) {
    return answered("cuDevicePrimaryCtxRelease", [] { --current.contexts_retained; });
}
Result get_current(Context* context) {
    return answered("cuCtxGetCurrent", [&] { *context = current_context(); });
}
Result set_current(Context context) {
    return answered("cuCtxSetCurrent", [&] { current_context() = context; });
}

Result exchange_capture_mode(int* mode) {
    return answered("cuThreadExchangeStreamCaptureMode", [&] { std::swap(own_capture_mode(), *mode); });
}

Result stream_create(Stream* stream, unsigned) {
    return answered("cuStreamCreate", [&] { handles.make(stream); });
}
Result stream_destroy(Stream) { return answer("cuStreamDestroy"); }
Result stream_synchronize(Stream) { return answer("cuStreamSynchronize"); }
Result stream_wait_event(Stream, Event, unsigned) { return answer("cuStreamWaitEvent"); }
Result stream_wait_value(Stream stream, Address address, std::uint32_t value, unsigned flags) {
    return answered("cuStreamWaitValue32", [&] {
        current.waits.push_back({stream, static_cast<std::uint32_t*>(host(address)), value, flags});
    });
}

Result event_create(Event* event, unsigned) {
    return answered("cuEventCreate", [&] { *event = reinterpret_cast<Event>(&handles.events.emplace_back()); });
}
Result event_destroy(Event) { return answer("cuEventDestroy"); }
Result event_record(Event event, Stream stream) {
    return answered("cuEventRecord", [&] {
        of(event).waits = current.waits;
        std::erase_if(of(event).waits, [&](const StreamWait& wait) { return wait.stream != stream; });
    });
}
Result event_query(Event event) {
    Result ready = kSuccess;
    const Result result = answered("cuEventQuery", [&] {
        const bool passed = std::ranges::all_of(of(event).waits, &StreamWait::passed);
        ready = passed ? kSuccess : cuda::kErrorNotReady;
    });
    return result == kSuccess ? ready : result;
}
Result event_synchronize(Event) { return answer("cuEventSynchronize"); }

Result allocate(Address* address, std::size_t bytes) {
    return answered("cuMemAlloc", [&] { *address = reinterpret_cast<std::uintptr_t>(std::malloc(bytes)); });
}
Result release(Address address) {
    return answered("cuMemFree", [&] { std::free(host(address)); });
}
Result host_register(void* memory, std::size_t bytes, unsigned flags) {
    return answered("cuMemHostRegister", [&] {
        current.registered[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
        current.register_flags = flags;
    });
}
Result host_unregister(void* memory) {
    return answered("cuMemHostUnregister", [&] { current.registered.erase(reinterpret_cast<std::uintptr_t>(memory)); });
}
Result host_device_pointer(Address* address, void* memory, unsigned) {
    return answered("cuMemHostGetDevicePointer", [&] { *address = reinterpret_cast<std::uintptr_t>(memory); });
}

Result copy(Address dst, Address src, std::size_t bytes, Stream stream) {
    return answered("cuMemcpyAsync", [&] {
        if (current.capturing != nullptr && stream == current.capturing) {
            handles.captured.push_back({dst, src, bytes});
        } else {
            std::memcpy(host(dst), host(src), bytes);
        }
    });
}
Result copy_2d(const Copy2d* rows, Stream) {
    return answered("cuMemcpy2DAsync", [&] {
        for (std::size_t row = 0; row < rows->height; ++row) {
            std::memcpy(host(rows->dst + row * rows->dst_pitch), host(rows->src + row * rows->src_pitch),
                        rows->width_bytes);
        }
    });
}
Result copy_batch(Address* dst, Address* src, std::size_t* bytes, std::size_t count, CopyAttributes* attributes,
                  std::size_t* first, std::size_t sets, Stream stream) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= cuda::kLegacyStream ||
        std::count(bytes, bytes + count, std::size_t{0}) != 0) {
        return cuda::kErrorInvalidValue;
    }
    return answered("cuMemcpyBatchAsync", [&] {
        current.access_order = attributes->access_order;
        current.attribute_sets = sets;
        current.first_copy = *first;
        for (std::size_t i = 0; i < count; ++i) {
            std::memcpy(host(dst[i]), host(src[i]), bytes[i]);
        }
    });
}
Result copy_batch_12(Address* dst, Address* src, std::size_t* bytes, std::size_t count, CopyAttributes* attributes,
                     std::size_t* first, std::size_t sets, std::size_t* failed, Stream stream) {
    *failed = 0;
    return copy_batch(dst, src, bytes, count, attributes, first, sets, stream);
}

Result module_load(Module* module, const void*) {
    return answered("cuModuleLoadData", [&] { handles.make(module); });
}
Result begin_capture(Stream stream, int mode) {
    return answered("cuStreamBeginCapture", [&] {
        handles.captured.clear();
        current.capturing = stream;
        current.capture_mode = mode;
    });
}
Result end_capture(Stream, Graph* graph) {
    return answered("cuStreamEndCapture", [&] {
        current.capturing = nullptr;
        ++current.graphs;
        *graph = reinterpret_cast<Graph>(&handles.graphs.emplace_back(handles.captured));
    });
}
Result graph_destroy(Graph) {
    return answered("cuGraphDestroy", [] { --current.graphs; });
}
Result graph_instantiate(GraphExec* made, Graph graph, unsigned long long) {
    return answered("cuGraphInstantiateWithFlags", [&] {
        ++current.graphs;
        *made = reinterpret_cast<GraphExec>(&handles.graphs.emplace_back(of(graph)));
    });
}
Result graph_launch(GraphExec graph, Stream) {
    return answered("cuGraphLaunch", [&] {
        for (const Copied& one : of(graph)) {
            std::memcpy(host(one.dst), host(one.src), one.bytes);
        }
    });
}
Result graph_exec_destroy(GraphExec) {
    return answered("cuGraphExecDestroy", [] { --current.graphs; });
}

Result module_unload(Module) { return answer("cuModuleUnload"); }
Result module_function(Function* function, Module, const char*) {
    return answered("cuModuleGetFunction", [&] { handles.make(function); });
}
Result function_set(Function, int attribute, int value) {
    return answered("cuFuncSetAttribute", [&] {
        current.shared_bytes_max = attribute == cuda::kFunctionSharedBytesMax ? value : current.shared_bytes_max;
    });
}
Result launch(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, Stream, void**,
              void**) {
    return answered("cuLaunchKernel", [&] { current.shared_bytes = shared; });
}

template <typename Pointer>
void* as_symbol(Pointer pointer) {
    return reinterpret_cast<void*>(pointer);
}

// Like the driver: the version that is asked for decides which arguments the entry point takes.
void* find(const std::string& name, int version) {
    static const std::map<std::string, void*> functions{
        {"cuGetErrorName", as_symbol(get_error_name)},
        {"cuGetErrorString", as_symbol(get_error_string)},
        {"cuInit", as_symbol(init)},
        {"cuDeviceGetCount", as_symbol(device_count)},
        {"cuDeviceGet", as_symbol(device)},
        {"cuDeviceGetName", as_symbol(device_name)},
        {"cuDeviceGetAttribute", as_symbol(device_attribute)},
        {"cuDevicePrimaryCtxRetain", as_symbol(primary_retain)},
        {"cuDevicePrimaryCtxRelease", as_symbol(primary_release)},
        {"cuCtxGetCurrent", as_symbol(get_current)},
        {"cuCtxSetCurrent", as_symbol(set_current)},
        {"cuStreamCreate", as_symbol(stream_create)},
        {"cuStreamDestroy", as_symbol(stream_destroy)},
        {"cuStreamSynchronize", as_symbol(stream_synchronize)},
        {"cuStreamWaitEvent", as_symbol(stream_wait_event)},
        {"cuStreamWaitValue32", as_symbol(stream_wait_value)},
        {"cuEventCreate", as_symbol(event_create)},
        {"cuEventDestroy", as_symbol(event_destroy)},
        {"cuEventRecord", as_symbol(event_record)},
        {"cuEventQuery", as_symbol(event_query)},
        {"cuEventSynchronize", as_symbol(event_synchronize)},
        {"cuMemAlloc", as_symbol(allocate)},
        {"cuMemFree", as_symbol(release)},
        {"cuMemHostRegister", as_symbol(host_register)},
        {"cuMemHostUnregister", as_symbol(host_unregister)},
        {"cuMemHostGetDevicePointer", as_symbol(host_device_pointer)},
        {"cuMemcpyAsync", as_symbol(copy)},
        {"cuMemcpy2DAsync", as_symbol(copy_2d)},
        {"cuThreadExchangeStreamCaptureMode", as_symbol(exchange_capture_mode)},
        {"cuStreamBeginCapture", as_symbol(begin_capture)},
        {"cuStreamEndCapture", as_symbol(end_capture)},
        {"cuGraphDestroy", as_symbol(graph_destroy)},
        {"cuGraphInstantiateWithFlags", as_symbol(graph_instantiate)},
        {"cuGraphLaunch", as_symbol(graph_launch)},
        {"cuGraphExecDestroy", as_symbol(graph_exec_destroy)},
        {"cuModuleLoadData", as_symbol(module_load)},
        {"cuModuleUnload", as_symbol(module_unload)},
        {"cuModuleGetFunction", as_symbol(module_function)},
        {"cuFuncSetAttribute", as_symbol(function_set)},
        {"cuLaunchKernel", as_symbol(launch)},
    };
    if (name == "cuMemcpyBatchAsync") {
        return version >= cuda::kVersion13_0   ? as_symbol(copy_batch)
               : version >= cuda::kVersion12_8 ? as_symbol(copy_batch_12)
                                               : nullptr;
    }
    const auto found = functions.find(name);
    return found == functions.end() || name == current.absent ? nullptr : found->second;
}

}  // namespace

bool State::called(const std::string& name) const { return std::ranges::find(calls, name) != calls.end(); }

State& state() { return current; }

void reset() {
    current = State();
    handles.events.clear();
    handles.graphs.clear();
    current_context() = nullptr;
    own_capture_mode() = 0;
}

cuda::Result allocate_pinned(void** memory, std::size_t bytes) {
    return answered("cuMemHostAlloc", [&] { *memory = std::malloc(bytes); });
}

int& own_capture_mode() {
    thread_local int mode = 0;  // global
    return mode;
}

cuda::Context primary_context() { return reinterpret_cast<cuda::Context>(0xC0); }

cuda::Context& current_context() {
    thread_local cuda::Context context = nullptr;
    return context;
}

}  // namespace kvfix::fake

extern "C" {

KVFIX_FAKE_API int cuDriverGetVersion(int* version);
KVFIX_FAKE_API int cuGetProcAddress_v2(const char* name, void** pointer, int version, std::uint64_t flags, int* status);

int cuDriverGetVersion(int* version) {
    *version = kvfix::fake::state().version;
    return kvfix::cuda::kSuccess;
}

int cuGetProcAddress_v2(const char* name, void** pointer, int version, std::uint64_t, int*) {
    if (version > kvfix::fake::state().version) {
        return kvfix::cuda::kErrorInvalidValue;
    }
    *pointer = kvfix::fake::find(name, version);
    return kvfix::cuda::kSuccess;
}
}
