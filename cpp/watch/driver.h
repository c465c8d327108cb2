// The driver's entry points that we call ourselves, found at run time in the library that the program has loaded.
#pragma once

#include <cstdint>

#include "watch/driver_api.h"

namespace kvfix::watch {

struct Driver {
    // The name of what is missing, null where everything that matters is there.
    const char* load();

    cuda::Result (*write_value)(cuda::Handle stream, cuda::Address to, std::uint32_t value, unsigned flags) = nullptr;
    cuda::Result (*is_capturing)(cuda::Handle stream, int* status) = nullptr;
    cuda::Result (*host_register)(void* begin, std::size_t bytes, unsigned flags) = nullptr;
    cuda::Result (*device_pointer)(cuda::Address* device, void* host, unsigned flags) = nullptr;
    cuda::Result (*exchange_capture_mode)(int* mode) = nullptr;
    // What follows may be missing; kernels and graphs are not watched then.
    cuda::Result (*function_param)(cuda::Handle function, std::size_t index, std::size_t* offset,
                                   std::size_t* bytes) = nullptr;
    cuda::Result (*kernel_param)(cuda::Handle kernel, std::size_t index, std::size_t* offset,
                                 std::size_t* bytes) = nullptr;
    cuda::Result (*graph_nodes)(cuda::Handle graph, cuda::Handle* nodes, std::size_t* count) = nullptr;
    cuda::Result (*node_type)(cuda::Handle node, int* type) = nullptr;
    cuda::Result (*memcpy_node)(cuda::Handle node, cuda::Copy3d* params) = nullptr;
    cuda::Result (*memset_node)(cuda::Handle node, cuda::MemsetNode* params) = nullptr;
    cuda::Result (*kernel_node)(cuda::Handle node, cuda::KernelNode* params) = nullptr;
    cuda::Result (*child_graph)(cuda::Handle node, cuda::Handle* graph) = nullptr;

    bool reads_kernels() const { return function_param != nullptr; }
    bool reads_graphs() const {
        return graph_nodes != nullptr && node_type != nullptr && memcpy_node != nullptr && memset_node != nullptr &&
               kernel_node != nullptr && child_graph != nullptr;
    }
};

}  // namespace kvfix::watch
