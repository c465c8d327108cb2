// What we use of the CUDA driver and of CUPTI, declared by hand: the library is built where neither is installed.
// cpp/tests/watch/check_declarations.cc compares it with the toolkit's headers where there are some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvfix::watch::cuda {

using Result = int;
using Address = unsigned long long;
using Handle = void*;  // context, stream, graph, node, function: we compare them and hand them back

inline constexpr Result kSuccess = 0;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr unsigned kRegisterDeviceMap = 2;
inline constexpr unsigned kRegisterReadOnly = 8;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kMemoryHost = 1;
inline constexpr int kMemoryUnified = 4;
inline constexpr int kOrderDuringCall = 2;
inline constexpr int kOperandPointer = 1;
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kThreadStream = 2;
inline constexpr std::uintptr_t kParamBuffer = 1;
inline constexpr std::uintptr_t kParamSize = 2;
enum NodeType : int { kNodeKernel = 0, kNodeMemcpy = 1, kNodeMemset = 2, kNodeGraph = 4 };

struct Copy2d {
    std::size_t src_x, src_y;
    int src_type;
    const void* src_host;
    Address src_device;
    Handle src_array;
    std::size_t src_pitch;
    std::size_t dst_x, dst_y;
    int dst_type;
    void* dst_host;
    Address dst_device;
    Handle dst_array;
    std::size_t dst_pitch;
    std::size_t width, height;
};

struct Copy3d {
    std::size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void* src_host;
    Address src_device;
    Handle src_array;
    void* reserved0;
    std::size_t src_pitch, src_height;
    std::size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void* dst_host;
    Address dst_device;
    Handle dst_array;
    void* reserved1;
    std::size_t dst_pitch, dst_height;
    std::size_t width, height, depth;
};

struct Location {
    int type, id;
};

struct BatchAttributes {
    int order;
    Location src_hint, dst_hint;
    unsigned flags;
};

struct Operand3d {
    int type;
    union {
        struct {
            Address begin;
            std::size_t row_length, layer_height;  // in bytes and rows; 0 means as the copy
            Location hint;
        } pointer;
        struct {
            Handle array;
            std::size_t x, y, z;
        } array;
    };
};

struct BatchCopy3d {
    Operand3d src, dst;
    std::size_t width, height, depth;
    int order;
    unsigned flags;
};

struct MemsetNode {
    Address dst;
    std::size_t pitch;
    unsigned value, element_bytes;
    std::size_t width, height;
};

struct KernelNode {
    Handle function;
    unsigned grid[3], block[3], shared_bytes;
    void** params;
    void** extra;
    Handle kernel, context;
};

struct CopyNode {
    int flags, reserved;
    Handle context;
    Copy3d copy;
};

struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    Handle stream;
    void* attributes;
    unsigned attributes_count;
};

struct NodeParams {
    int type;
    int reserved0[3];
    union {
        long long reserved1[29];
        KernelNode kernel;
        CopyNode copy;
        MemsetNode memset;
        Handle graph;
    };
    long long reserved2;
};

// Arguments of calls, as CUPTI hands them over.
namespace args {
struct HostAlloc {
    void** result;
    std::size_t bytes;
    unsigned flags;  // of cuMemHostAlloc alone
};
struct HostRegister {
    void* begin;
    std::size_t bytes;
    unsigned flags;
};
struct HostFree {
    void* begin;
};
struct Copy {  // generic, and from device to device
    Address dst, src;
    std::size_t bytes;
    Handle stream;
};
struct CopyToArray {
    Handle array;
    std::size_t offset;
    const void* src;
    std::size_t bytes;
    Handle stream;
};
struct CopyFromArray {
    void* dst;
    Handle array;
    std::size_t offset, bytes;
    Handle stream;
};
template <typename Params>
struct CopyShaped {
    const Params* copy;
    Handle stream;
};
struct CopyBatchBase {
    Address *dsts, *srcs;
    std::size_t* bytes;
    std::size_t count;
    BatchAttributes* attributes;
    std::size_t* attribute_starts;
    std::size_t attributes_count;
};
struct CopyBatchV1 : CopyBatchBase {
    std::size_t* failed;
    Handle stream;
};
struct CopyBatch : CopyBatchBase {
    Handle stream;
};
struct CopyBatch3dV1 {
    std::size_t count;
    BatchCopy3d* copies;
    std::size_t* failed;
    unsigned long long flags;
    Handle stream;
};
struct CopyBatch3d {
    std::size_t count;
    BatchCopy3d* copies;
    unsigned long long flags;
    Handle stream;
};
template <typename Value>
struct Memset {
    Address dst;
    Value value;
    std::size_t count;
    Handle stream;
};
template <typename Value>
struct Memset2d {
    Address dst;
    std::size_t pitch;
    Value value;
    std::size_t width, height;
    Handle stream;
};
struct Launch {
    Handle function;
    unsigned grid[3], block[3], shared_bytes;
    Handle stream;
    void** params;
    void** extra;  // not of cooperative launches
};
struct LaunchEx {
    const LaunchConfig* config;
    Handle function;
    void** params;
    void** extra;
};
struct GraphLaunch {
    Handle graph, stream;
};
struct GraphInstantiate {
    Handle* result;
    Handle graph;
};
template <typename Params>
struct GraphUpdate {  // a graph, or one node of it, takes new parameters
    Handle executable;
    Handle node;
    const Params* params;
};
struct OneHandle {
    Handle handle;
};
}  // namespace args
}  // namespace kvfix::watch::cuda

namespace kvfix::watch::cupti {

inline constexpr int kDriverDomain = 1;
inline constexpr int kEnter = 0;
inline constexpr int kExit = 1;
inline constexpr int kManySubscribers = 39;
inline constexpr int kLimitReached = 12;

struct CallbackData {
    int site;
    const char* name;
    const void* arguments;
    const void* result;
    const char* symbol;
    void* context;
    std::uint32_t context_id;
    std::uint64_t* correlation_data;
    std::uint32_t correlation_id;
};

using Callback = void (*)(void* user, int domain, std::uint32_t id, const void* data);

}  // namespace kvfix::watch::cupti
