// What cpp/hostrace/driver_api.h and calls.def declare by hand, and the handlers of calls.cc by what they take, against
// the toolkit's headers. It compiles, or it is wrong. Compiled where cuda.h and CUPTI's headers are; those of CUDA 13.0
// declare everything that is compared.
#include <cuda.h>
#include <cupti.h>

#include <cstddef>

#include "hostrace/calls.cc"

namespace hostrace {
namespace {

// cuda.h gives the older names to the newer calls; we mean what we write.
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#undef cuGraphAddNode
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuStreamBatchMemOp
#undef cuEventElapsedTime
#define CALL(name, number, when, handler, per_thread) \
    static_assert(CUPTI_DRIVER_TRACE_CBID_##name == (number), #name " has another number");
#include "hostrace/calls.def"
#undef CALL

// Our structure is theirs, or the beginning of it; the named member lies at the same place.
#define SAME(ours, our_member, theirs, their_member)                                                \
    static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) &&                   \
                      sizeof(decltype(ours::our_member)) == sizeof(decltype(theirs::their_member)), \
                  #ours "." #our_member)

SAME(cuda::Copy2d, src.host, CUDA_MEMCPY2D, srcHost);
SAME(cuda::Copy2d, src.pitch, CUDA_MEMCPY2D, srcPitch);
SAME(cuda::Copy2d, dst.device, CUDA_MEMCPY2D, dstDevice);
SAME(cuda::Copy2d, width, CUDA_MEMCPY2D, WidthInBytes);
SAME(cuda::Copy2d, height, CUDA_MEMCPY2D, Height);
SAME(cuda::Copy3d, src.host, CUDA_MEMCPY3D, srcHost);
SAME(cuda::Copy3d, src.height, CUDA_MEMCPY3D, srcHeight);
SAME(cuda::Copy3d, dst.type, CUDA_MEMCPY3D, dstMemoryType);
SAME(cuda::Copy3d, dst.device, CUDA_MEMCPY3D, dstDevice);
SAME(cuda::Copy3d, dst.pitch, CUDA_MEMCPY3D, dstPitch);
SAME(cuda::Copy3d, width, CUDA_MEMCPY3D, WidthInBytes);
SAME(cuda::Copy3d, depth, CUDA_MEMCPY3D, Depth);
static_assert(sizeof(cuda::Copy2d) == sizeof(CUDA_MEMCPY2D) && sizeof(cuda::Copy3d) == sizeof(CUDA_MEMCPY3D));
SAME(cuda::BatchAttributes, order, CUmemcpyAttributes, srcAccessOrder);
static_assert(sizeof(cuda::BatchAttributes) == sizeof(CUmemcpyAttributes));
SAME(cuda::Operand3d, type, CUmemcpy3DOperand, type);
SAME(cuda::Operand3d, begin, CUmemcpy3DOperand, op.ptr.ptr);
SAME(cuda::Operand3d, row_length, CUmemcpy3DOperand, op.ptr.rowLength);
static_assert(sizeof(cuda::Operand3d) == sizeof(CUmemcpy3DOperand));
SAME(cuda::BatchCopy3d, dst, CUDA_MEMCPY3D_BATCH_OP, dst);
SAME(cuda::BatchCopy3d, width, CUDA_MEMCPY3D_BATCH_OP, extent.width);
SAME(cuda::BatchCopy3d, depth, CUDA_MEMCPY3D_BATCH_OP, extent.depth);
SAME(cuda::BatchCopy3d, order, CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder);
static_assert(sizeof(cuda::BatchCopy3d) == sizeof(CUDA_MEMCPY3D_BATCH_OP));
SAME(cuda::Copy3d, src.reserved, CUDA_MEMCPY3D_PEER, srcContext);
SAME(cuda::Copy3d, dst.device, CUDA_MEMCPY3D_PEER, dstDevice);
SAME(cuda::Copy3d, depth, CUDA_MEMCPY3D_PEER, Depth);
SAME(cuda::AllocationProperties, location, CUmemAllocationProp, location);
SAME(cuda::AllocationProperties, location, CUmemPoolProps, location);
SAME(cuda::AllocationProperties, type, CUmemPoolProps, allocType);
static_assert(sizeof(cuda::AllocationProperties) == sizeof(CUmemAllocationProp));
SAME(cuda::Access, flags, CUmemAccessDesc, flags);
static_assert(sizeof(cuda::Access) == sizeof(CUmemAccessDesc));
static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(std::uint64_t));
static_assert(cuda::kPlaceOfHost == CU_MEM_LOCATION_TYPE_HOST);
static_assert(cuda::kPlaceOfHostEnd == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT + 1);
static_assert(cuda::kAllocationManaged == CU_MEM_ALLOCATION_TYPE_MANAGED);
static_assert(cuda::kAccessBoth == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(cuda::MemsetNode, element_bytes, CUDA_MEMSET_NODE_PARAMS, elementSize);
SAME(cuda::MemsetNode, height, CUDA_MEMSET_NODE_PARAMS, height);
SAME(cuda::KernelNode, params, CUDA_KERNEL_NODE_PARAMS, kernelParams);
SAME(cuda::KernelNode, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
static_assert(sizeof(cuda::KernelNode) == sizeof(CUDA_KERNEL_NODE_PARAMS));
SAME(cuda::NodeParams, kernel.params, CUgraphNodeParams, kernel.kernelParams);
SAME(cuda::NodeParams, copy.copy, CUgraphNodeParams, memcpy.copyParams);
SAME(cuda::NodeParams, memset.width, CUgraphNodeParams, memset.width);
SAME(cuda::NodeParams, conditional.bodies, CUgraphNodeParams, conditional.phGraph_out);
SAME(cuda::NodeParams, conditional.bodies_count, CUgraphNodeParams, conditional.size);
static_assert(int{cuda::kNodeConditional} == int{CU_GRAPH_NODE_TYPE_CONDITIONAL});
SAME(cuda::NodeParams, graph, CUgraphNodeParams, graph.graph);
static_assert(sizeof(cuda::NodeParams) == sizeof(CUgraphNodeParams));
SAME(cuda::LaunchConfig, stream, CUlaunchConfig, hStream);

// The handler finds its argument of that number where CUPTI has it.
#define TAKES(handler, number, name, member) \
    static_assert(Spread<&handler>::kOffsets[number] == offsetof(name##_params, member), #name "." #member)

TAKES(host_alloc, 0, cuMemHostAlloc, pp);
TAKES(host_alloc, 1, cuMemHostAlloc, bytesize);
TAKES(host_alloc, 1, cuMemAllocHost_v2, bytesize);
TAKES(host_register, 1, cuMemHostRegister_v2, bytesize);
TAKES(host_register, 2, cuMemHostRegister_v2, Flags);
TAKES(host_free, 0, cuMemFreeHost, p);
TAKES(host_unregister, 0, cuMemHostUnregister, p);
TAKES(memory_map, 3, cuMemMap, handle);
TAKES(memory_access, 2, cuMemSetAccess, desc);
TAKES(memory_access, 3, cuMemSetAccess, count);
TAKES(memory_unmap, 1, cuMemUnmap, size);
TAKES(pool_create, 1, cuMemPoolCreate, poolProps);
TAKES(pool_destroy, 0, cuMemPoolDestroy, pool);
TAKES(pool_of_place, 1, cuMemGetDefaultMemPool, location);
TAKES(pool_of_place, 2, cuMemGetMemPool, type);
TAKES(pool_alloc, 2, cuMemAllocFromPoolAsync, pool);
TAKES(pool_alloc, 3, cuMemAllocFromPoolAsync_ptsz, hStream);
TAKES(pool_free, 0, cuMemFree_v2, dptr);
TAKES(pool_free_in_order, 0, cuMemFreeAsync, dptr);
TAKES(copy_peer, 2, cuMemcpyPeerAsync, srcDevice);
TAKES(copy_peer, 5, cuMemcpyPeerAsync, hStream);
TAKES(copy_shaped<cuda::Copy3d>, 1, cuMemcpy3DPeerAsync, hStream);
TAKES(waited_for_stream, 0, cuStreamQuery, hStream);
TAKES(waited_for_event, 0, cuEventQuery, hEvent);
TAKES(waited_for_events, 2, cuEventElapsedTime_v2, hEnd);
TAKES(waited_for_given_context, 0, cuCtxSynchronize_v2, ctx);
TAKES(event_record, 1, cuEventRecord, hStream);
TAKES(event_record, 1, cuEventRecordWithFlags, hStream);
TAKES(stream_wait, 1, cuStreamWaitEvent, hEvent);
TAKES(event_unknown, 0, cuEventDestroy_v2, hEvent);
TAKES(host_function, 0, cuLaunchHostFunc, hStream);
TAKES(host_function, 0, cuStreamAddCallback, hStream);
TAKES(waits_for_value, 0, cuStreamWaitValue32_v2, stream);
TAKES(writes_value, 0, cuStreamWriteValue32_v2, stream);
TAKES(waits_and_writes, 0, cuStreamBatchMemOp_v2, stream);
TAKES(waits_for_semaphore, 3, cuWaitExternalSemaphoresAsync, stream);
TAKES(enable_node, 2, cuGraphNodeSetEnabled, isEnabled);
SAME(cuda::LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME(cuda::LaunchAttribute, event, CUlaunchAttribute, value.programmaticEvent.event);
static_assert(sizeof(cuda::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(cuda::kLaunchRecords == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
static_assert(cuda::kLaunchCompletionRecords == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
static_assert(cuda::kMemoryTypeOf == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(int{cuda::kNodeHost} == int{CU_GRAPH_NODE_TYPE_HOST});
static_assert(int{cuda::kNodeRecordEvent} == int{CU_GRAPH_NODE_TYPE_EVENT_RECORD});
static_assert(int{cuda::kNodeMemOps} == int{CU_GRAPH_NODE_TYPE_BATCH_MEM_OP});
TAKES(stream_destroy, 0, cuStreamDestroy_v2, hStream);
TAKES(context_destroy, 0, cuCtxDestroy_v2, ctx);
TAKES(copy, 1, cuMemcpyHtoDAsync_v2, srcHost);
TAKES(copy, 3, cuMemcpyHtoDAsync_v2, hStream);
TAKES(copy, 0, cuMemcpyDtoHAsync_v2, dstHost);
TAKES(copy, 2, cuMemcpyDtoDAsync_v2, ByteCount);
TAKES(copy, 3, cuMemcpyAsync_ptsz, hStream);
TAKES(copy_to_array, 2, cuMemcpyHtoAAsync_v2, srcHost);
TAKES(copy_to_array, 4, cuMemcpyHtoAAsync_v2, hStream);
TAKES(copy_from_array, 3, cuMemcpyAtoHAsync_v2, ByteCount);
TAKES(copy_from_array, 4, cuMemcpyAtoHAsync_v2, hStream);
TAKES(copy_shaped<cuda::Copy2d>, 1, cuMemcpy2DAsync_v2, hStream);
TAKES(copy_shaped<cuda::Copy3d>, 1, cuMemcpy3DAsync_v2, hStream);
TAKES(copy_batch, 3, cuMemcpyBatchAsync_v2, count);
TAKES(copy_batch, 5, cuMemcpyBatchAsync_v2, attrsIdxs);
TAKES(copy_batch, 7, cuMemcpyBatchAsync_v2, hStream);
TAKES(copy_batch_v1, 8, cuMemcpyBatchAsync, hStream);
TAKES(copy_batch_3d, 1, cuMemcpy3DBatchAsync_v2, opList);
TAKES(copy_batch_3d, 3, cuMemcpy3DBatchAsync_v2, hStream);
TAKES(copy_batch_3d_v1, 4, cuMemcpy3DBatchAsync, hStream);
TAKES(memset<std::uint8_t>, 2, cuMemsetD8Async, N);
TAKES(memset<std::uint16_t>, 3, cuMemsetD16Async, hStream);
TAKES(memset<std::uint32_t>, 3, cuMemsetD32Async, hStream);
TAKES(memset_2d<std::uint8_t>, 3, cuMemsetD2D8Async, Width);
TAKES(memset_2d<std::uint16_t>, 4, cuMemsetD2D16Async, Height);
TAKES(memset_2d<std::uint32_t>, 5, cuMemsetD2D32Async, hStream);
TAKES(launch, 2, cuLaunchKernel, hStream);
TAKES(launch, 4, cuLaunchKernel, extra);
TAKES(launch_cooperative, 3, cuLaunchCooperativeKernel, kernelParams);
TAKES(launch_extended, 0, cuLaunchKernelEx, config);
TAKES(launch_extended, 3, cuLaunchKernelEx, extra);
TAKES(graph_launch, 1, cuGraphLaunch, hStream);
TAKES(graph_add_node, 1, cuGraphAddNode_v2, hGraph);
TAKES(graph_add_node, 5, cuGraphAddNode_v2, nodeParams);
TAKES(graph_add_node_v1, 4, cuGraphAddNode, nodeParams);
TAKES(graph_forget, 0, cuGraphDestroy, hGraph);
TAKES(graph_instantiate, 1, cuGraphInstantiateWithFlags, hGraph);
TAKES(graph_instantiate, 1, cuGraphInstantiateWithParams, hGraph);
TAKES(graph_update, 1, cuGraphExecUpdate_v2, hGraph);
TAKES(set_node<cuda::Copy3d>, 2, cuGraphExecMemcpyNodeSetParams, copyParams);
TAKES(set_node<cuda::MemsetNode>, 2, cuGraphExecMemsetNodeSetParams, memsetParams);
TAKES(set_node<cuda::KernelNode>, 2, cuGraphExecKernelNodeSetParams_v2, nodeParams);
TAKES(set_child, 2, cuGraphExecChildGraphNodeSetParams, childGraph);
TAKES(set_any_node, 2, cuGraphExecNodeSetParams, nodeParams);

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
}  // namespace hostrace
