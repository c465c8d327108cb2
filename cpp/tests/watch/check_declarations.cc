// What cpp/watch/driver_api.h and calls.def declare by hand, against the toolkit's headers. It compiles, or it is wrong.
// Compiled where cuda.h and CUPTI's headers are; those of CUDA 12.8 to 13.x declare everything that is compared.
#include <cuda.h>
#include <cupti.h>

#include <cstddef>

#include "watch/driver_api.h"

namespace {

using namespace kvfix::watch;
namespace args = cuda::args;

// cuda.h gives the older names to the newer calls; we mean what we write.
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#define CALL(name, number, when, handler, per_thread) \
    static_assert(CUPTI_DRIVER_TRACE_CBID_##name == (number), #name " has another number");
#include "watch/calls.def"
#undef CALL

// Our structure is theirs, or the beginning of it; the named member lies at the same place.
#define SAME(ours, our_member, theirs, their_member)                                                \
    static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) &&                   \
                      sizeof(decltype(ours::our_member)) == sizeof(decltype(theirs::their_member)), \
                  #ours "." #our_member)

SAME(cuda::Copy2d, src_host, CUDA_MEMCPY2D, srcHost);
SAME(cuda::Copy2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
SAME(cuda::Copy2d, dst_device, CUDA_MEMCPY2D, dstDevice);
SAME(cuda::Copy2d, width, CUDA_MEMCPY2D, WidthInBytes);
SAME(cuda::Copy2d, height, CUDA_MEMCPY2D, Height);
SAME(cuda::Copy3d, src_host, CUDA_MEMCPY3D, srcHost);
SAME(cuda::Copy3d, src_height, CUDA_MEMCPY3D, srcHeight);
SAME(cuda::Copy3d, dst_type, CUDA_MEMCPY3D, dstMemoryType);
SAME(cuda::Copy3d, dst_device, CUDA_MEMCPY3D, dstDevice);
SAME(cuda::Copy3d, dst_pitch, CUDA_MEMCPY3D, dstPitch);
SAME(cuda::Copy3d, width, CUDA_MEMCPY3D, WidthInBytes);
SAME(cuda::Copy3d, depth, CUDA_MEMCPY3D, Depth);
static_assert(sizeof(cuda::Copy2d) == sizeof(CUDA_MEMCPY2D) && sizeof(cuda::Copy3d) == sizeof(CUDA_MEMCPY3D));
SAME(cuda::BatchAttributes, order, CUmemcpyAttributes, srcAccessOrder);
static_assert(sizeof(cuda::BatchAttributes) == sizeof(CUmemcpyAttributes));
SAME(cuda::Operand3d, type, CUmemcpy3DOperand, type);
SAME(cuda::Operand3d, pointer.row_length, CUmemcpy3DOperand, op.ptr.rowLength);
SAME(cuda::BatchCopy3d, dst, CUDA_MEMCPY3D_BATCH_OP, dst);
SAME(cuda::BatchCopy3d, width, CUDA_MEMCPY3D_BATCH_OP, extent.width);
SAME(cuda::BatchCopy3d, depth, CUDA_MEMCPY3D_BATCH_OP, extent.depth);
SAME(cuda::BatchCopy3d, order, CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder);
static_assert(sizeof(cuda::BatchCopy3d) == sizeof(CUDA_MEMCPY3D_BATCH_OP));
SAME(cuda::MemsetNode, element_bytes, CUDA_MEMSET_NODE_PARAMS, elementSize);
SAME(cuda::MemsetNode, height, CUDA_MEMSET_NODE_PARAMS, height);
SAME(cuda::KernelNode, params, CUDA_KERNEL_NODE_PARAMS, kernelParams);
SAME(cuda::KernelNode, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
static_assert(sizeof(cuda::KernelNode) == sizeof(CUDA_KERNEL_NODE_PARAMS));
SAME(cuda::NodeParams, kernel.params, CUgraphNodeParams, kernel.kernelParams);
SAME(cuda::NodeParams, copy.copy, CUgraphNodeParams, memcpy.copyParams);
SAME(cuda::NodeParams, memset.width, CUgraphNodeParams, memset.width);
SAME(cuda::NodeParams, graph, CUgraphNodeParams, graph.graph);
static_assert(sizeof(cuda::NodeParams) == sizeof(CUgraphNodeParams));
SAME(cuda::LaunchConfig, stream, CUlaunchConfig, hStream);

SAME(args::HostAlloc, result, cuMemHostAlloc_params, pp);
SAME(args::HostAlloc, bytes, cuMemHostAlloc_params, bytesize);
SAME(args::HostRegister, flags, cuMemHostRegister_v2_params, Flags);
SAME(args::HostFree, begin, cuMemFreeHost_params, p);
SAME(args::Copy, src, cuMemcpyHtoDAsync_v2_params, srcHost);
SAME(args::Copy, stream, cuMemcpyHtoDAsync_v2_params, hStream);
SAME(args::Copy, dst, cuMemcpyDtoHAsync_v2_params, dstHost);
SAME(args::Copy, stream, cuMemcpyAsync_params, hStream);
SAME(args::CopyToArray, src, cuMemcpyHtoAAsync_v2_params, srcHost);
SAME(args::CopyToArray, stream, cuMemcpyHtoAAsync_v2_params, hStream);
SAME(args::CopyFromArray, bytes, cuMemcpyAtoHAsync_v2_params, ByteCount);
SAME(args::CopyFromArray, stream, cuMemcpyAtoHAsync_v2_params, hStream);
SAME(args::CopyShaped<cuda::Copy2d>, stream, cuMemcpy2DAsync_v2_params, hStream);
SAME(args::CopyShaped<cuda::Copy3d>, stream, cuMemcpy3DAsync_v2_params, hStream);
SAME(args::Memset<std::uint8_t>, count, cuMemsetD8Async_params, N);
SAME(args::Memset<std::uint16_t>, stream, cuMemsetD16Async_params, hStream);
SAME(args::Memset<std::uint32_t>, stream, cuMemsetD32Async_params, hStream);
SAME(args::Memset2d<std::uint8_t>, width, cuMemsetD2D8Async_params, Width);
SAME(args::Memset2d<std::uint32_t>, stream, cuMemsetD2D32Async_params, hStream);
SAME(args::Launch, stream, cuLaunchKernel_params, hStream);
SAME(args::Launch, extra, cuLaunchKernel_params, extra);
SAME(args::Launch, params, cuLaunchCooperativeKernel_params, kernelParams);
SAME(args::LaunchEx, config, cuLaunchKernelEx_params, config);
SAME(args::LaunchEx, extra, cuLaunchKernelEx_params, extra);
SAME(args::GraphLaunch, stream, cuGraphLaunch_params, hStream);
SAME(args::GraphInstantiate, graph, cuGraphInstantiateWithFlags_params, hGraph);
SAME(args::GraphInstantiate, graph, cuGraphInstantiateWithParams_params, hGraph);
SAME(args::GraphUpdate<void>, node, cuGraphExecUpdate_v2_params, hGraph);
SAME(args::GraphUpdate<cuda::Copy3d>, params, cuGraphExecMemcpyNodeSetParams_params, copyParams);
SAME(args::GraphUpdate<void>, params, cuGraphExecChildGraphNodeSetParams_params, childGraph);
SAME(args::GraphUpdate<cuda::NodeParams>, params, cuGraphExecNodeSetParams_params, nodeParams);

SAME(cupti::CallbackData, arguments, CUpti_CallbackData, functionParams);
SAME(cupti::CallbackData, result, CUpti_CallbackData, functionReturnValue);
SAME(cupti::CallbackData, context, CUpti_CallbackData, context);
static_assert(cupti::kEnter == CUPTI_API_ENTER && cupti::kExit == CUPTI_API_EXIT);
static_assert(cupti::kDriverDomain == CUPTI_CB_DOMAIN_DRIVER_API);
static_assert(cupti::kManySubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(cuda::kOrderDuringCall == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
static_assert(cuda::kOperandPointer == CU_MEMCPY_OPERAND_TYPE_POINTER);
static_assert(cuda::kMemoryHost == CU_MEMORYTYPE_HOST && cuda::kMemoryUnified == CU_MEMORYTYPE_UNIFIED);
static_assert(int{cuda::kNodeMemcpy} == int{CU_GRAPH_NODE_TYPE_MEMCPY});
static_assert(int{cuda::kNodeGraph} == int{CU_GRAPH_NODE_TYPE_GRAPH});
static_assert(cuda::kRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(cuda::kRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);

}  // namespace
