// The part of the CUDA driver API that we use, declared by hand from its documentation, because wheels are built on
// machines without CUDA. If cuda.h is present, cpp/tests/cuda/check_declarations.cc compares all of it with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvfix::cuda {

using Result = int;
using DeviceNumber = int;
// unsigned long long as in cuda.h, which differs from std::size_t: messages print it in hexadecimal.
using Address = unsigned long long;
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorNoBinaryForGpu = 209;
inline constexpr Result kErrorUnsupportedPtxVersion = 222;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorIllegalAddress = 700;
inline constexpr Result kErrorHostMemoryAlreadyRegistered = 712;
inline constexpr Result kErrorHostMemoryNotRegistered = 713;
inline constexpr Result kErrorSystemDriverMismatch = 803;
inline constexpr Result kErrorCaptureUnsupported = 900;

// A version is 1000 * major + 10 * minor. An entry point is looked up by the version that gave it its present
// arguments.
inline constexpr int kVersion12_0 = 12000;
inline constexpr int kVersion12_8 = 12080;
inline constexpr int kVersion13_0 = 13000;
// Handle 0 means the legacy default stream, and not one per thread.
inline constexpr std::uint64_t kProcAddressLegacyStream = 1;

inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeComputeMajor = 75;
inline constexpr int kFunctionSharedBytesMax = 8;  // the most dynamic shared memory that a launch may ask for
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr unsigned kRegisterDeviceMap = 2;
inline constexpr int kCaptureThreadLocal = 1;       // other threads may call anything meanwhile
inline constexpr int kCaptureRelaxed = 2;           // for one thread: it may call anything, however others capture
inline constexpr unsigned kWaitUntilAtLeast = 0;    // CU_STREAM_WAIT_VALUE_GEQ
inline constexpr std::uintptr_t kLegacyStream = 1;  // another name of handle 0

// Either side may be pinned host memory or device memory: the address decides.
inline constexpr int kMemoryUnified = 4;
struct Copy2d {
    std::size_t src_x_bytes, src_y;
    int src_memory;
    const void* src_host;
    Address src;
    void* src_array;
    std::size_t src_pitch;
    std::size_t dst_x_bytes, dst_y;
    int dst_memory;
    void* dst_host;
    Address dst;
    void* dst_array;
    std::size_t dst_pitch;
    std::size_t width_bytes, height;
};

inline constexpr int kAccessOrderStream = 1;
inline constexpr int kAccessOrderAny = 3;
struct Location {
    int type, id;
};
struct CopyAttributes {
    int access_order;
    Location src_hint, dst_hint;  // read for managed and pageable memory only
    unsigned flags;
};

}  // namespace kvfix::cuda
