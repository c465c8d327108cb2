#include "watch/calls.h"

#include <array>
#include <cstdint>

#include "watch/copies.h"
#include "watch/thread.h"

namespace kvfix::watch {
namespace {

using namespace cupti;  // the numbers of the calls
namespace args = cuda::args;

constexpr std::array<std::uint32_t, 76> kWanted{kMemHostAlloc,
                                                kMemHostAllocV2,
                                                kMemAllocHost,
                                                kMemFreeHost,
                                                kMemHostRegisterOld,
                                                kMemHostRegister,
                                                kMemHostUnregister,
                                                kMemcpyHtoDAsync,
                                                kMemcpyHtoDAsyncPtsz,
                                                kMemcpyDtoHAsync,
                                                kMemcpyDtoHAsyncPtsz,
                                                kMemcpyDtoDAsync,
                                                kMemcpyDtoDAsyncPtsz,
                                                kMemcpyAsync,
                                                kMemcpyAsyncPtsz,
                                                kMemcpyAtoHAsync,
                                                kMemcpyAtoHAsyncPtsz,
                                                kMemcpyHtoAAsync,
                                                kMemcpyHtoAAsyncPtsz,
                                                kMemcpy2DAsync,
                                                kMemcpy2DAsyncPtsz,
                                                kMemcpy3DAsync,
                                                kMemcpy3DAsyncPtsz,
                                                kMemcpyBatch,
                                                kMemcpyBatchPtsz,
                                                kMemcpyBatchV2,
                                                kMemcpyBatchV2Ptsz,
                                                kMemcpy3DBatch,
                                                kMemcpy3DBatchPtsz,
                                                kMemcpy3DBatchV2,
                                                kMemcpy3DBatchV2Ptsz,
                                                kMemsetD8Async,
                                                kMemsetD8AsyncPtsz,
                                                kMemsetD16Async,
                                                kMemsetD16AsyncPtsz,
                                                kMemsetD32Async,
                                                kMemsetD32AsyncPtsz,
                                                kMemsetD2D8Async,
                                                kMemsetD2D8AsyncPtsz,
                                                kMemsetD2D16Async,
                                                kMemsetD2D16AsyncPtsz,
                                                kMemsetD2D32Async,
                                                kMemsetD2D32AsyncPtsz,
                                                kLaunchKernel,
                                                kLaunchKernelPtsz,
                                                kLaunchCooperative,
                                                kLaunchCooperativePtsz,
                                                kLaunchKernelEx,
                                                kLaunchKernelExPtsz,
                                                kGraphInstantiateOld,
                                                kGraphInstantiateLog,
                                                kGraphInstantiate,
                                                kGraphInstantiateParams,
                                                kGraphInstantiateParamsPtsz,
                                                kGraphLaunch,
                                                kGraphLaunchPtsz,
                                                kGraphExecDestroy,
                                                kGraphExecUpdateOld,
                                                kGraphExecUpdate,
                                                kExecMemcpySet,
                                                kExecMemsetSet,
                                                kExecKernelSetOld,
                                                kExecKernelSet,
                                                kExecChildSet,
                                                kExecNodeSet,
                                                kStreamDestroy,
                                                kCtxDestroy,
                                                kPrimaryCtxReleaseOld,
                                                kPrimaryCtxRelease,
                                                kPrimaryCtxResetOld,
                                                kPrimaryCtxReset,
                                                kModuleUnload,
                                                kLibraryUnload,
                                                kStreamSynchronize,
                                                kStreamSynchronizePtsz,
                                                kEventSynchronize};

template <typename Arguments>
const Arguments& as(const void* arguments) {
    return *static_cast<const Arguments*>(arguments);
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

const std::uint32_t* Calls::wanted(std::size_t* count) {
    *count = kWanted.size();
    return kWanted.data();
}

void Calls::on_call(std::uint32_t id, const CallbackData& data) {
    Thread& thread = self();
    if (thread.inside) {
        return;
    }
    thread.inside = true;
    if (data.site == kEnter) {
        before(id, data);
    } else if (data.result == nullptr || *static_cast<const int*>(data.result) == cuda::kSuccess) {
        after(id, data);
    }
    thread.inside = false;
}

Enqueued Calls::enqueued(const CallbackData& data, cuda::Handle stream, bool per_thread) {
    StreamKey key{data.context, stream, 0};
    if (number(stream) == cuda::kLegacyStream) {
        key.stream = nullptr;
    } else if (number(stream) == cuda::kThreadStream || (per_thread && stream == nullptr)) {
        key.stream = reinterpret_cast<cuda::Handle>(cuda::kThreadStream);
        key.thread = self().id;
    }
    return {watch_, streams_, ranges_, key};
}

void Calls::give_back(std::uintptr_t begin, const char* how) {
    const Range range = ranges_.remove(begin);
    watch_.give_back(range.begin, range.end - range.begin, how);
}

// What takes something away must be seen before it happens.
void Calls::before(std::uint32_t id, const CallbackData& data) {
    switch (id) {
        case kMemFreeHost:
            return give_back(number(as<args::HostFree>(data.arguments).begin), "cuMemFreeHost");
        case kMemHostUnregister:
            return give_back(number(as<args::HostFree>(data.arguments).begin), "cuMemHostUnregister");
        case kStreamDestroy:
            return streams_.forget_stream(data.context, as<args::OneHandle>(data.arguments).handle);
        case kCtxDestroy: {
            const void* context = as<args::OneHandle>(data.arguments).handle;
            watch_.guard.forget_context(context);
            return streams_.forget_context(context);
        }
        case kPrimaryCtxReleaseOld:
        case kPrimaryCtxRelease:
        case kPrimaryCtxResetOld:
        case kPrimaryCtxReset:
            watch_.guard.forget_context(nullptr);
            return streams_.forget_context(nullptr);
        case kGraphExecDestroy:
            return graphs_.destroyed(as<args::OneHandle>(data.arguments).handle);
        case kModuleUnload:
        case kLibraryUnload:
            return kernels_.forget();
        default:
            return;
    }
}

void Calls::after(std::uint32_t id, const CallbackData& data) {
    if (!memory(id, data.arguments) && !copy(id, data) && !launch(id, data) && !memset(id, data)) {
        graph(id, data);
    }
}

bool Calls::memory(std::uint32_t id, const void* arguments) {
    switch (id) {
        case kMemHostAlloc:
        case kMemHostAllocV2:
        case kMemAllocHost: {
            const auto& call = as<args::HostAlloc>(arguments);
            ranges_.add(number(*call.result), call.bytes);
            return true;
        }
        case kMemHostRegisterOld:
        case kMemHostRegister: {
            const auto& call = as<args::HostRegister>(arguments);
            if ((call.flags & cuda::kRegisterReadOnly) == 0) {  // nobody writes it, and we may not make it writable
                ranges_.add(number(call.begin), call.bytes);
            }
            return true;
        }
        case kStreamSynchronize:
        case kStreamSynchronizePtsz:
        case kEventSynchronize:
            watch_.guard.retire();
            return true;
        default:
            return false;
    }
}

void Calls::copy_sides(const Shape& src, const Shape& dst, int order, Enqueued& behind) const {
    if (order != cuda::kOrderDuringCall) {
        behind.side(src, Kind::copy, false);
    }
    behind.side(dst, Kind::copy, true);
}

void Calls::copy_batch(const args::CopyBatch& batch, Enqueued& behind) const {
    std::size_t attribute = 0;
    for (std::size_t at = 0; at < batch.count; ++at) {
        while (attribute + 1 < batch.attributes_count && batch.attribute_starts[attribute + 1] <= at) {
            ++attribute;
        }
        const int order = batch.attributes_count == 0 ? 0 : batch.attributes[attribute].order;
        copy_sides(line(batch.srcs[at], batch.bytes[at]), line(batch.dsts[at], batch.bytes[at]), order, behind);
    }
}

bool Calls::copy(std::uint32_t id, const CallbackData& data) {
    const void* arguments = data.arguments;
    const auto shaped = [&](const auto* type, bool per_thread) {
        const auto& call = as<args::CopyShaped>(arguments);
        Enqueued behind = enqueued(data, call.stream, per_thread);
        const Sides sides = sides_of(*static_cast<decltype(type)>(call.copy));
        copy_sides(sides.src, sides.dst, 0, behind);
        return true;
    };
    const auto batch = [&](bool first, bool per_thread) {
        const auto& call = as<args::CopyBatch>(arguments);
        Enqueued behind = enqueued(data, first ? call.first.stream : call.second.stream, per_thread);
        copy_batch(call, behind);
        return true;
    };
    const auto batch_3d = [&](bool first, bool per_thread) {
        const auto& call = as<args::CopyBatch3d>(arguments);
        Enqueued behind = enqueued(data, first ? call.first.stream : call.second.stream, per_thread);
        for (std::size_t at = 0; at < call.count; ++at) {
            const Sides sides = sides_of(call.copies[at]);
            copy_sides(sides.src, sides.dst, call.copies[at].order, behind);
        }
        return true;
    };
    switch (id) {
        case kMemcpyHtoDAsync:
        case kMemcpyDtoHAsync:
        case kMemcpyDtoDAsync:
        case kMemcpyAsync:
        case kMemcpyHtoDAsyncPtsz:
        case kMemcpyDtoHAsyncPtsz:
        case kMemcpyDtoDAsyncPtsz:
        case kMemcpyAsyncPtsz: {
            const auto& call = as<args::Copy>(arguments);
            Enqueued behind = enqueued(data, call.stream, id >= kMemcpyAsyncPtsz);
            copy_sides(line(call.src, call.bytes), line(call.dst, call.bytes), 0, behind);
            return true;
        }
        case kMemcpyHtoAAsync:
        case kMemcpyHtoAAsyncPtsz: {
            const auto& call = as<args::CopyToArray>(arguments);
            Enqueued behind = enqueued(data, call.stream, id == kMemcpyHtoAAsyncPtsz);
            behind.side(line(number(call.src), call.bytes), Kind::copy, false);
            return true;
        }
        case kMemcpyAtoHAsync:
        case kMemcpyAtoHAsyncPtsz: {
            const auto& call = as<args::CopyFromArray>(arguments);
            Enqueued behind = enqueued(data, call.stream, id == kMemcpyAtoHAsyncPtsz);
            behind.side(line(number(call.dst), call.bytes), Kind::copy, true);
            return true;
        }
        case kMemcpy2DAsync:
        case kMemcpy2DAsyncPtsz:
            return shaped(static_cast<const cuda::Copy2d*>(nullptr), id == kMemcpy2DAsyncPtsz);
        case kMemcpy3DAsync:
        case kMemcpy3DAsyncPtsz:
            return shaped(static_cast<const cuda::Copy3d*>(nullptr), id == kMemcpy3DAsyncPtsz);
        case kMemcpyBatch:
        case kMemcpyBatchPtsz:
            return batch(true, id == kMemcpyBatchPtsz);
        case kMemcpyBatchV2:
        case kMemcpyBatchV2Ptsz:
            return batch(false, id == kMemcpyBatchV2Ptsz);
        case kMemcpy3DBatch:
        case kMemcpy3DBatchPtsz:
            return batch_3d(true, id == kMemcpy3DBatchPtsz);
        case kMemcpy3DBatchV2:
        case kMemcpy3DBatchV2Ptsz:
            return batch_3d(false, id == kMemcpy3DBatchV2Ptsz);
        default:
            return false;
    }
}

bool Calls::memset(std::uint32_t id, const CallbackData& data) {
    const auto linear = [&]<typename Value>(Value /*size of an element*/, bool per_thread) {
        const auto& call = as<args::Memset<Value>>(data.arguments);
        Enqueued behind = enqueued(data, call.stream, per_thread);
        behind.side(line(call.dst, call.count * sizeof(Value)), Kind::memset, true);
        return true;
    };
    const auto pitched = [&]<typename Value>(Value /*size of an element*/, bool per_thread) {
        const auto& call = as<args::Memset2d<Value>>(data.arguments);
        Enqueued behind = enqueued(data, call.stream, per_thread);
        behind.side(rectangle(call.dst, call.width * sizeof(Value), call.height, call.pitch), Kind::memset, true);
        return true;
    };
    switch (id) {
        case kMemsetD8Async:
        case kMemsetD8AsyncPtsz:
            return linear(std::uint8_t{}, id == kMemsetD8AsyncPtsz);
        case kMemsetD16Async:
        case kMemsetD16AsyncPtsz:
            return linear(std::uint16_t{}, id == kMemsetD16AsyncPtsz);
        case kMemsetD32Async:
        case kMemsetD32AsyncPtsz:
            return linear(std::uint32_t{}, id == kMemsetD32AsyncPtsz);
        case kMemsetD2D8Async:
        case kMemsetD2D8AsyncPtsz:
            return pitched(std::uint8_t{}, id == kMemsetD2D8AsyncPtsz);
        case kMemsetD2D16Async:
        case kMemsetD2D16AsyncPtsz:
            return pitched(std::uint16_t{}, id == kMemsetD2D16AsyncPtsz);
        case kMemsetD2D32Async:
        case kMemsetD2D32AsyncPtsz:
            return pitched(std::uint32_t{}, id == kMemsetD2D32AsyncPtsz);
        default:
            return false;
    }
}

bool Calls::launch(std::uint32_t id, const CallbackData& data) {
    cuda::Handle function = nullptr;
    cuda::Handle stream = nullptr;
    void** params = nullptr;
    void** extra = nullptr;
    switch (id) {
        case kLaunchKernel:
        case kLaunchKernelPtsz:
        case kLaunchCooperative:
        case kLaunchCooperativePtsz: {
            const auto& call = as<args::Launch>(data.arguments);
            function = call.function;
            stream = call.stream;
            params = call.params;
            extra = id == kLaunchKernel || id == kLaunchKernelPtsz ? call.extra : nullptr;
            break;
        }
        case kLaunchKernelEx:
        case kLaunchKernelExPtsz: {
            const auto& call = as<args::LaunchEx>(data.arguments);
            function = call.function;
            stream = call.config->stream;
            params = call.params;
            extra = call.extra;
            break;
        }
        default:
            return false;
    }
    const auto pinned = kernels_.pinned(function, params, extra, ranges_);
    if (!pinned.empty()) {
        const bool per_thread = id == kLaunchKernelPtsz || id == kLaunchCooperativePtsz || id == kLaunchKernelExPtsz;
        Enqueued behind = enqueued(data, stream, per_thread);
        for (const std::uintptr_t address : pinned) {
            behind.pointer(address, Kind::kernel);
        }
    }
    return true;
}

bool Calls::graph(std::uint32_t id, const CallbackData& data) {
    const auto& update = as<args::GraphUpdate>(data.arguments);
    switch (id) {
        case kGraphInstantiateOld:
        case kGraphInstantiateLog:
        case kGraphInstantiate:
        case kGraphInstantiateParams:
        case kGraphInstantiateParamsPtsz: {
            const auto& call = as<args::GraphInstantiate>(data.arguments);
            graphs_.instantiated(*call.result, call.graph);
            return true;
        }
        case kGraphLaunch:
        case kGraphLaunchPtsz: {
            const auto& call = as<args::GraphLaunch>(data.arguments);
            Enqueued behind = enqueued(data, call.stream, id == kGraphLaunchPtsz);
            graphs_.launched(call.graph, behind);
            return true;
        }
        case kGraphExecUpdateOld:
        case kGraphExecUpdate:
            graphs_.updated(update.executable, update.node);
            return true;
        case kExecMemcpySet:
            graphs_.set_copy(update.executable, update.node, *static_cast<const cuda::Copy3d*>(update.params));
            return true;
        case kExecMemsetSet:
            graphs_.set_memset(update.executable, update.node, *static_cast<const cuda::MemsetNode*>(update.params));
            return true;
        case kExecKernelSetOld:
        case kExecKernelSet: {
            auto kernel = *static_cast<const cuda::KernelNode*>(update.params);
            graphs_.set_kernel(update.executable, update.node, kernel);
            return true;
        }
        case kExecChildSet:
            graphs_.set_child(update.executable, update.node, const_cast<cuda::Handle>(update.params));
            return true;
        case kExecNodeSet: {
            const auto& node = *static_cast<const cuda::NodeParams*>(update.params);
            if (node.type == cuda::kNodeMemcpy) {
                graphs_.set_copy(update.executable, update.node, node.copy.copy);
            } else if (node.type == cuda::kNodeMemset) {
                graphs_.set_memset(update.executable, update.node, node.memset);
            } else if (node.type == cuda::kNodeKernel) {
                graphs_.set_kernel(update.executable, update.node, node.kernel);
            } else if (node.type == cuda::kNodeGraph) {
                graphs_.set_child(update.executable, update.node, node.graph);
            }
            return true;
        }
        default:
            return false;
    }
}

}  // namespace kvfix::watch
