// Compares cuda_api.h and cuda_driver.h with the toolkit's declarations, if there is a toolkit. Compiling is the check.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "device/cuda_driver.h"

namespace kvfix::cuda {
namespace {

template <typename Ours, typename Theirs>
constexpr bool kSameArgument = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename... Ours, typename Answer, typename... Theirs>
    requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameFunction<Call<Ours...>, Answer (*)(Theirs...)>
    : std::bool_constant<sizeof(Answer) == sizeof(Result) && (kSameArgument<Ours, Theirs> && ...)> {};

#define KVFIX_SAME(member, theirs) static_assert(SameFunction<decltype(Driver::member), theirs>::value, #theirs)

KVFIX_SAME(init, PFN_cuInit_v2000);
KVFIX_SAME(device_count, PFN_cuDeviceGetCount_v2000);
KVFIX_SAME(device, PFN_cuDeviceGet_v2000);
KVFIX_SAME(device_name, PFN_cuDeviceGetName_v2000);
KVFIX_SAME(device_attribute, PFN_cuDeviceGetAttribute_v2000);
KVFIX_SAME(primary_retain, PFN_cuDevicePrimaryCtxRetain_v7000);
KVFIX_SAME(primary_release, PFN_cuDevicePrimaryCtxRelease_v11000);
KVFIX_SAME(get_current, PFN_cuCtxGetCurrent_v4000);
KVFIX_SAME(set_current, PFN_cuCtxSetCurrent_v4000);
KVFIX_SAME(stream_create, PFN_cuStreamCreate_v2000);
KVFIX_SAME(stream_destroy, PFN_cuStreamDestroy_v4000);
KVFIX_SAME(stream_synchronize, PFN_cuStreamSynchronize_v2000);
KVFIX_SAME(stream_wait_event, PFN_cuStreamWaitEvent_v3020);
KVFIX_SAME(stream_wait_value, PFN_cuStreamWaitValue32_v11070);
KVFIX_SAME(event_create, PFN_cuEventCreate_v2000);
KVFIX_SAME(event_destroy, PFN_cuEventDestroy_v4000);
KVFIX_SAME(event_record, PFN_cuEventRecord_v2000);
KVFIX_SAME(event_query, PFN_cuEventQuery_v2000);
KVFIX_SAME(event_synchronize, PFN_cuEventSynchronize_v2000);
KVFIX_SAME(allocate, PFN_cuMemAlloc_v3020);
KVFIX_SAME(free, PFN_cuMemFree_v3020);
KVFIX_SAME(host_register, PFN_cuMemHostRegister_v6050);
KVFIX_SAME(host_unregister, PFN_cuMemHostUnregister_v4000);
KVFIX_SAME(host_device_pointer, PFN_cuMemHostGetDevicePointer_v3020);
KVFIX_SAME(copy, PFN_cuMemcpyAsync_v4000);
KVFIX_SAME(copy_2d, PFN_cuMemcpy2DAsync_v3020);
KVFIX_SAME(exchange_capture_mode, PFN_cuThreadExchangeStreamCaptureMode_v10010);
KVFIX_SAME(begin_capture, PFN_cuStreamBeginCapture_v10010);
KVFIX_SAME(end_capture, PFN_cuStreamEndCapture_v10000);
KVFIX_SAME(graph_destroy, PFN_cuGraphDestroy_v10000);
KVFIX_SAME(graph_instantiate, PFN_cuGraphInstantiateWithFlags_v11040);
KVFIX_SAME(graph_launch, PFN_cuGraphLaunch_v10000);
KVFIX_SAME(graph_exec_destroy, PFN_cuGraphExecDestroy_v10000);
KVFIX_SAME(module_load, PFN_cuModuleLoadData_v2000);
KVFIX_SAME(module_unload, PFN_cuModuleUnload_v2000);
KVFIX_SAME(module_function, PFN_cuModuleGetFunction_v2000);
KVFIX_SAME(function_set, PFN_cuFuncSetAttribute_v9000);
KVFIX_SAME(launch, PFN_cuLaunchKernel_v4000);

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kErrorNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kErrorNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kErrorUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kErrorInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(kErrorIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kErrorHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kErrorHostMemoryNotRegistered == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
static_assert(kErrorSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);

static_assert(kProcAddressLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kFunctionSharedBytesMax == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kCaptureThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(kWaitUntilAtLeast == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(kMemoryUnified == CU_MEMORYTYPE_UNIFIED);

#define KVFIX_PLACED(ours, member, theirs, their_member) \
    static_assert(offsetof(ours, member) == offsetof(theirs, their_member), #their_member)

static_assert(sizeof(Copy2d) == sizeof(CUDA_MEMCPY2D));
KVFIX_PLACED(Copy2d, src_x_bytes, CUDA_MEMCPY2D, srcXInBytes);
KVFIX_PLACED(Copy2d, src_y, CUDA_MEMCPY2D, srcY);
KVFIX_PLACED(Copy2d, src_memory, CUDA_MEMCPY2D, srcMemoryType);
KVFIX_PLACED(Copy2d, src_host, CUDA_MEMCPY2D, srcHost);
KVFIX_PLACED(Copy2d, src, CUDA_MEMCPY2D, srcDevice);
KVFIX_PLACED(Copy2d, src_array, CUDA_MEMCPY2D, srcArray);
KVFIX_PLACED(Copy2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
KVFIX_PLACED(Copy2d, dst_x_bytes, CUDA_MEMCPY2D, dstXInBytes);
KVFIX_PLACED(Copy2d, dst_y, CUDA_MEMCPY2D, dstY);
KVFIX_PLACED(Copy2d, dst_memory, CUDA_MEMCPY2D, dstMemoryType);
KVFIX_PLACED(Copy2d, dst_host, CUDA_MEMCPY2D, dstHost);
KVFIX_PLACED(Copy2d, dst, CUDA_MEMCPY2D, dstDevice);
KVFIX_PLACED(Copy2d, dst_array, CUDA_MEMCPY2D, dstArray);
KVFIX_PLACED(Copy2d, dst_pitch, CUDA_MEMCPY2D, dstPitch);
KVFIX_PLACED(Copy2d, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
KVFIX_PLACED(Copy2d, height, CUDA_MEMCPY2D, Height);

// Older toolkits do not know these.
#if CUDA_VERSION >= 12080
KVFIX_SAME(copy_batch_12, PFN_cuMemcpyBatchAsync_v12080);
static_assert(kAccessOrderStream == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(kAccessOrderAny == CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
KVFIX_PLACED(CopyAttributes, access_order, CUmemcpyAttributes, srcAccessOrder);
KVFIX_PLACED(CopyAttributes, src_hint, CUmemcpyAttributes, srcLocHint);
KVFIX_PLACED(CopyAttributes, dst_hint, CUmemcpyAttributes, dstLocHint);
KVFIX_PLACED(CopyAttributes, flags, CUmemcpyAttributes, flags);
#endif
#if CUDA_VERSION >= 13000
KVFIX_SAME(copy_batch, PFN_cuMemcpyBatchAsync_v13000);
#endif

}  // namespace
}  // namespace kvfix::cuda
