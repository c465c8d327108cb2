// What we use of the CUDA driver and of CUPTI, declared by hand: the library is built where neither is installed.
// cpp/tests/check_declarations.cc compares it with the toolkit's headers where there are some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hostrace::cuda {

using Result = int;
using Address = unsigned long long;
using Handle = void*;  // context, stream, graph, node, function: we compare them and hand them back

inline constexpr Result kSuccess = 0;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr unsigned kRegisterDeviceMap = 2;
inline constexpr unsigned kRegisterReadOnly = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kMemoryTypeOf = 2;                                  // attribute of a pointer
inline constexpr int kLaunchRecords = 7, kLaunchCompletionRecords = 12;  // attributes with an event
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kMemoryHost = 1;
inline constexpr int kMemoryUnified = 4;
inline constexpr int kOrderDuringCall = 2;
inline constexpr int kOperandPointer = 1;
inline constexpr int kPlaceOfHost = 2, kPlaceOfHostEnd = 5;  // kinds of host memory, by node or not
inline constexpr int kAllocationManaged = 2;
inline constexpr int kAccessBoth = 3;
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kThreadStream = 2;
inline constexpr std::uintptr_t kParamBuffer = 1;
inline constexpr std::uintptr_t kParamSize = 2;
enum NodeType : int {
    kNodeKernel = 0,
    kNodeMemcpy = 1,
    kNodeMemset = 2,
    kNodeHost = 3,
    kNodeGraph = 4,
    kNodeWaitEvent = 6,
    kNodeRecordEvent = 7,
    kNodeSignalSemaphore = 8,
    kNodeWaitSemaphore = 9,
    kNodeMemOps = 12,
    kNodeConditional = 13
};

struct Copy2d {
    struct Side {
        std::size_t x, y;
        int type;
        std::uintptr_t host;
        Address device;
        Handle array;
        std::size_t pitch;
    } src, dst;
    std::size_t width, height;
};

struct Copy3d {
    struct Side {
        std::size_t x, y, z, lod;
        int type;
        std::uintptr_t host;
        Address device;
        Handle array;
        void* reserved;
        std::size_t pitch, height;
    } src, dst;
    std::size_t width, height, depth;
};

struct Location {
    int type, id;
};

// What an allocation, or the beginning of what a pool, is made with.
struct AllocationProperties {
    int type, handle_types;
    Location location;
    void* meta;
    unsigned char flags[8];
};

struct Access {
    Location location;
    int flags;
};

struct BatchAttributes {
    int order;
    Location src_hint, dst_hint;
    unsigned flags;
};

struct Operand3d {
    int type;
    Address begin;  // as all that follows, of memory; an array has other members there, and not more
    std::size_t row_length, layer_height;  // in bytes and rows; 0 means as the copy
    Location hint;
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

struct LaunchShape {
    unsigned grid[3], block[3], shared_bytes;
};

struct KernelNode {
    Handle function;
    LaunchShape shape;
    void** params;
    void** extra;
    Handle kernel, context;
};

struct CopyNode {
    int flags, reserved;
    Handle context;
    Copy3d copy;
};

struct ConditionalNode {
    unsigned long long handle;
    int type;
    unsigned bodies_count;
    Handle* bodies;  // graphs, which the driver keeps for as long as the node lives
    Handle context;
};

struct LaunchAttribute {
    int id;
    Handle event;  // of those that record one
    char rest[56];
};

struct LaunchConfig {
    LaunchShape shape;
    Handle stream;
    LaunchAttribute* attributes;
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
        ConditionalNode conditional;
    };
    long long reserved2;
};

}  // namespace hostrace::cuda

namespace hostrace::cupti {

inline constexpr int kDriverDomain = 1;
inline constexpr int kEnter = 0;
inline constexpr int kExit = 1;
inline constexpr int kManySubscribers = 39;
inline constexpr int kLimitReached = 12;

struct CallbackData {  // the beginning of it
    int site;
    const char* name;
    const void* arguments;
    const void* result;
    const char* symbol;
    void* context;
};

using Callback = void (*)(void* user, int domain, std::uint32_t id, const void* data);

}  // namespace hostrace::cupti
