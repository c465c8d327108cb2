#include "watch/driver.h"

#include <dlfcn.h>

#include <type_traits>

namespace kvfix::watch {

const char* Driver::load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        return "libcuda.so.1";
    }
    const char* missing = nullptr;
    const auto find = [&](auto& call, const char* name, bool required) {
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
        if (call == nullptr && required) {
            missing = name;
        }
    };
    find(write_value, "cuStreamWriteValue32_v2", true);
    find(is_capturing, "cuStreamIsCapturing", true);
    find(host_register, "cuMemHostRegister_v2", true);
    find(device_pointer, "cuMemHostGetDevicePointer_v2", true);
    find(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", true);
    find(function_param, "cuFuncGetParamInfo", false);
    find(kernel_param, "cuKernelGetParamInfo", false);
    find(graph_nodes, "cuGraphGetNodes", false);
    find(node_type, "cuGraphNodeGetType", false);
    find(memcpy_node, "cuGraphMemcpyNodeGetParams", false);
    find(memset_node, "cuGraphMemsetNodeGetParams", false);
    find(kernel_node, "cuGraphKernelNodeGetParams_v2", false);
    find(child_graph, "cuGraphChildGraphNodeGetGraph", false);
    return missing;
}

}  // namespace kvfix::watch
