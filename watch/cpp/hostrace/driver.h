// The driver's entry points that we call ourselves, found at run time in the library that the program has loaded.
#pragma once

#include <dlfcn.h>

#include <type_traits>

#include "hostrace/driver_api.h"

namespace hostrace {

struct Driver {
    // The name of what is missing, null where everything that matters is there.
    const char* load() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (library == nullptr) {
            return "libcuda.so.1";
        }
        const char* missing = nullptr;
        const auto find = [&](auto& call, const char* name, const char*& without) {
            call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
            without = call == nullptr ? name : without;
        };
        find(write_value, "cuStreamWriteValue32_v2", missing);
        find(is_capturing, "cuStreamIsCapturing", missing);
        find(host_register, "cuMemHostRegister_v2", missing);
        find(device_pointer, "cuMemHostGetDevicePointer_v2", missing);
        find(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", missing);
        find(function_param, "cuFuncGetParamInfo", without_kernels);
        find(graph_nodes, "cuGraphGetNodes", without_graphs);
        find(node_type, "cuGraphNodeGetType", without_graphs);
        find(memcpy_node, "cuGraphMemcpyNodeGetParams", without_graphs);
        find(memset_node, "cuGraphMemsetNodeGetParams", without_graphs);
        find(kernel_node, "cuGraphKernelNodeGetParams_v2", without_graphs);
        find(child_graph, "cuGraphChildGraphNodeGetGraph", without_graphs);
        const char* optional = nullptr;
        find(event_node, "cuGraphEventRecordNodeGetEvent", optional);
        find(any_node, "cuGraphNodeGetParams", optional);
        find(stream_flags, "cuStreamGetFlags", optional);
        find(pointer_attribute, "cuPointerGetAttribute", optional);
        find(kernel_param, "cuKernelGetParamInfo", optional);
        find(allocation_properties, "cuMemGetAllocationPropertiesFromHandle", optional);
        return missing;
    }

    template <typename... Arguments>
    using Call = cuda::Result (*)(Arguments...);

    Call<cuda::Handle, cuda::Address, std::uint32_t, unsigned> write_value = nullptr;
    Call<cuda::Handle, int*> is_capturing = nullptr;
    Call<void*, std::size_t, unsigned> host_register = nullptr;
    Call<cuda::Address*, void*, unsigned> device_pointer = nullptr;
    Call<int*> exchange_capture_mode = nullptr;
    // Of a function, and of a kernel of a library, where the driver has such: offset and bytes of a parameter.
    Call<cuda::Handle, std::size_t, std::size_t*, std::size_t*> function_param = nullptr, kernel_param = nullptr;
    Call<cuda::Handle, cuda::Handle*, std::size_t*> graph_nodes = nullptr;
    Call<cuda::Handle, int*> node_type = nullptr;
    Call<cuda::Handle, cuda::Copy3d*> memcpy_node = nullptr;
    Call<cuda::Handle, cuda::MemsetNode*> memset_node = nullptr;
    Call<cuda::Handle, cuda::KernelNode*> kernel_node = nullptr;
    Call<cuda::Handle, cuda::Handle*> child_graph = nullptr;
    Call<cuda::Handle, cuda::Handle*> event_node = nullptr;
    Call<cuda::Handle, cuda::NodeParams*> any_node = nullptr;
    Call<cuda::Handle, unsigned*> stream_flags = nullptr;
    Call<void*, int, cuda::Address> pointer_attribute = nullptr;
    Call<cuda::AllocationProperties*, std::uint64_t> allocation_properties = nullptr;
    // What an older driver lacks, so that these are not watched.
    const char* without_kernels = nullptr;
    const char* without_graphs = nullptr;
};

}  // namespace hostrace
