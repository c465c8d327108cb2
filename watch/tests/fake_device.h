// What our own device asks of a driver besides: entry points by name, events, and graphs of copies.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

namespace {

constexpr int kNotReady = 600;

struct Event {
    std::atomic<int> recorded{0}, passed{0};
};

void wait_until(const Event& event, int recorded) {
    while (event.passed < recorded) {
        usleep(50);
    }
}

struct Graph {
    std::vector<Copied> copies;
};

}  // namespace

API cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
API cuGetProcAddress_v2(const char* name, void** found, int, unsigned long long, void*) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *found = dlsym(library, (std::string(name) + "_v2").c_str());
    if (*found == nullptr) {
        *found = dlsym(library, name);
    }
    return *found == nullptr ? kInvalid : kSuccess;
}
API cuGetErrorName(int, const char** text) { return *text = "made up", kSuccess; }
API cuGetErrorString(int, const char** text) { return *text = "made up", kSuccess; }
API cuDeviceGetName(char* name, int size, int) { return std::snprintf(name, size, "made up"), kSuccess; }
API cuDeviceGetAttribute(int* value, int, int) { return *value = 8, kSuccess; }
API cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
API cuCtxSetCurrent(void* made) { return current = made, kSuccess; }
API cuCtxGetCurrent(void** found) { return *found = current, kSuccess; }
API cuStreamDestroy_v2(void* stream) {
    return told(326, "cuStreamDestroy_v2", One{stream}, [] { return kSuccess; });
}
API cuMemFree_v2(Address address) { return std::free(reinterpret_cast<void*>(address)), kSuccess; }
API cuModuleUnload(void*) { return kSuccess; }
API cuFuncSetAttribute(void*, int, int) { return kInvalid; }

API cuEventCreate(void** event, unsigned flags) {
    struct Create {
        void** event;
        unsigned flags;
    };
    return told(118, "cuEventCreate", Create{event, flags}, [=] { return *event = new Event, kSuccess; });
}
API cuEventDestroy_v2(void* event) {  // a stream may still wait for it
    return told(325, "cuEventDestroy_v2", One{event}, [] { return kSuccess; });
}
API cuEventRecord(void* event, void* stream) {
    return told(119, "cuEventRecord", Two{event, stream}, [=] {
        return enqueue(stream, [it = static_cast<Event*>(event), number = ++static_cast<Event*>(event)->recorded] {
            it->passed = number;
        });
    });
}
API cuEventQuery(void* event) {
    const auto* it = static_cast<Event*>(event);
    return told(120, "cuEventQuery", One{event}, [=] { return it->passed < it->recorded ? kNotReady : kSuccess; });
}
API cuEventSynchronize(void* event) {
    const auto* it = static_cast<Event*>(event);
    return told(121, "cuEventSynchronize", One{event}, [it] { return wait_until(*it, it->recorded), kSuccess; });
}
API cuIpcGetEventHandle(void* handle, void* event) {
    return told(334, "cuIpcGetEventHandle", Two{handle, event}, [] { return kSuccess; });
}
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
    const auto* it = static_cast<Event*>(event);
    return told(295, "cuStreamWaitEvent", Two{stream, event},
                [=] { return enqueue(stream, [it, number = it->recorded.load()] { wait_until(*it, number); }); });
}

API cuStreamBeginCapture_v2(void* stream, int) { return stream_of(stream).capturing = true, kSuccess; }
API cuStreamEndCapture(void* stream, void** graph) {
    stream_of(stream).capturing = false;
    *graph = new Graph{std::move(captured)};
    captured.clear();
    return kSuccess;
}
API cuGraphDestroy(void*) { return kSuccess; }
API cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
    struct Instantiate {
        void** made;
        void* graph;
    };
    return told(643, "cuGraphInstantiateWithFlags", Instantiate{made, graph}, [=] { return *made = graph, kSuccess; });
}
API cuGraphLaunch(void* graph, void* stream) {
    struct GraphLaunch {
        void *graph, *stream;
    };
    return told(514, "cuGraphLaunch", GraphLaunch{graph, stream}, [=] {
        return enqueue(stream, [it = static_cast<Graph*>(graph)] {
            for (const Copied& each : it->copies) {
                if (each.function != nullptr) {
                    each.function(each.data);
                } else if (each.enabled) {
                    device_copy(each.dst, each.src, each.bytes);
                }
            }
        });
    });
}
API cuGraphExecDestroy(void* graph) {
    return told(516, "cuGraphExecDestroy", One{graph}, [] { return kSuccess; });
}
API cuGraphGetNodes(void* graph, void** nodes, std::size_t* count) {
    auto& copies = static_cast<Graph*>(graph)->copies;
    *count = copies.size();
    for (std::size_t at = 0; nodes != nullptr && at < copies.size(); ++at) {
        nodes[at] = &copies[at];
    }
    return kSuccess;
}
API cuGraphNodeGetType(void* node, int* type) {
    const bool host = static_cast<Copied*>(node)->function != nullptr;
    return *type = host ? hostrace::cuda::kNodeHost : hostrace::cuda::kNodeMemcpy, kSuccess;
}
API cuGraphNodeSetEnabled(void* graph, void* node, unsigned enabled) {
    struct Enable {
        void *graph, *node;
        unsigned enabled;
    };
    return told(650, "cuGraphNodeSetEnabled", Enable{graph, node, enabled},
                [=] { return static_cast<Copied*>(node)->enabled = enabled != 0, kSuccess; });
}
API cuGraphMemcpyNodeGetParams(void* node, hostrace::cuda::Copy3d* params) {
    const auto& copied = *static_cast<Copied*>(node);
    *params = {};
    params->src.type = params->dst.type = hostrace::cuda::kMemoryUnified;
    params->src.device = copied.src;
    params->dst.device = copied.dst;
    params->width = copied.bytes;
    params->height = params->depth = 1;
    return kSuccess;
}
API cuGraphEventRecordNodeGetEvent(void*, void**) { return kInvalid; }
API cuGraphMemsetNodeGetParams(void*, void*) { return kInvalid; }
API cuGraphKernelNodeGetParams_v2(void*, void*) { return kInvalid; }
API cuGraphChildGraphNodeGetGraph(void*, void**) { return kInvalid; }
