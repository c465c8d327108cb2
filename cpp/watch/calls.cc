#include "watch/calls.h"

#include <array>
#include <cstdint>

#include "watch/copies.h"
#include "watch/thread.h"

namespace kvfix::watch {
namespace {

namespace args = cuda::args;

struct Call {
    Calls& parts;
    const void* arguments;
    const void* context;
    bool per_thread;
};

template <typename Arguments>
const Arguments& as(const Call& call) {
    return *static_cast<const Arguments*>(call.arguments);
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void add_sides(const Sides& sides, int order, Enqueued& behind) {
    if (order != cuda::kOrderDuringCall) {  // else the source is free when the call returns
        behind.side(sides.src, Kind::copy, false);
    }
    behind.side(sides.dst, Kind::copy, true);
}

Enqueued enqueued(const Call& call, cuda::Handle stream) {
    StreamKey key{call.context, stream, 0};
    if (number(stream) == cuda::kLegacyStream) {
        key.stream = nullptr;
    } else if (number(stream) == cuda::kThreadStream || (call.per_thread && stream == nullptr)) {
        key.stream = reinterpret_cast<cuda::Handle>(cuda::kThreadStream);
        key.thread = self().id;
    }
    return {call.parts.watch, call.parts.streams, call.parts.ranges, key};
}

// The call that pins memory may wait for the device; the first use of it must not, so what that needs is made here.
void host_alloc(const Call& call) {
    const auto& given = as<args::HostAlloc>(call);
    call.parts.ranges.add(number(*given.result), given.bytes);
    call.parts.streams.prepare(call.context);
}

void host_register(const Call& call) {
    const auto& given = as<args::HostRegister>(call);
    if ((given.flags & cuda::kRegisterReadOnly) == 0) {  // nobody writes it, and we may not make it writable
        call.parts.ranges.add(number(given.begin), given.bytes);
        call.parts.streams.prepare(call.context);
    }
}

void give_back(const Call& call, const char* how) {
    const Range range = call.parts.ranges.remove(number(as<args::HostFree>(call).begin));
    call.parts.watch.give_back(range.begin, range.end - range.begin, how);
}

void host_free(const Call& call) { give_back(call, "cuMemFreeHost"); }

void host_unregister(const Call& call) { give_back(call, "cuMemHostUnregister"); }

void synchronized(const Call& call) { call.parts.watch.guard.retire(); }

void stream_destroy(const Call& call) {
    call.parts.streams.forget_stream(call.context, as<args::OneHandle>(call).handle);
}

void context_destroy(const Call& call) {
    const void* context = as<args::OneHandle>(call).handle;
    call.parts.watch.guard.forget_context(context);
    call.parts.streams.forget_context(context);
}

void contexts_reset(const Call& call) {
    call.parts.watch.guard.forget_context(nullptr);
    call.parts.streams.forget_context(nullptr);
}

// Handles of functions may come again for something else.
void unload(const Call& call) { call.parts.kernels.forget(); }

void copy(const Call& call) {
    const auto& given = as<args::Copy>(call);
    Enqueued behind = enqueued(call, given.stream);
    add_sides({line(given.src, given.bytes), line(given.dst, given.bytes)}, 0, behind);
}

void copy_from_array(const Call& call) {
    const auto& given = as<args::CopyFromArray>(call);
    enqueued(call, given.stream).side(line(number(given.dst), given.bytes), Kind::copy, true);
}

void copy_to_array(const Call& call) {
    const auto& given = as<args::CopyToArray>(call);
    enqueued(call, given.stream).side(line(number(given.src), given.bytes), Kind::copy, false);
}

template <typename Copy>
void copy_shaped(const Call& call) {
    const auto& given = as<args::CopyShaped<Copy>>(call);
    Enqueued behind = enqueued(call, given.stream);
    add_sides(sides_of(*given.copy), 0, behind);
}

template <typename Batch>
void copy_batch(const Call& call) {
    const auto& given = as<Batch>(call);
    Enqueued behind = enqueued(call, given.stream);
    std::size_t attribute = 0;
    for (std::size_t at = 0; at < given.count; ++at) {
        while (attribute + 1 < given.attributes_count && given.attribute_starts[attribute + 1] <= at) {
            ++attribute;
        }
        const int order = given.attributes_count == 0 ? 0 : given.attributes[attribute].order;
        add_sides({line(given.srcs[at], given.bytes[at]), line(given.dsts[at], given.bytes[at])}, order, behind);
    }
}

template <typename Batch>
void copy_batch_3d(const Call& call) {
    const auto& given = as<Batch>(call);
    Enqueued behind = enqueued(call, given.stream);
    for (std::size_t at = 0; at < given.count; ++at) {
        add_sides(sides_of(given.copies[at]), given.copies[at].order, behind);
    }
}

template <typename Value>
void memset(const Call& call) {
    const auto& given = as<args::Memset<Value>>(call);
    enqueued(call, given.stream).side(line(given.dst, given.count * sizeof(Value)), Kind::memset, true);
}

template <typename Value>
void memset_2d(const Call& call) {
    const auto& given = as<args::Memset2d<Value>>(call);
    const Shape rows = rectangle(given.dst, given.width * sizeof(Value), given.height, given.pitch);
    enqueued(call, given.stream).side(rows, Kind::memset, true);
}

void launched(const Call& call, cuda::Handle function, cuda::Handle stream, void** params, void** extra) {
    const auto pinned = call.parts.kernels.pinned(function, params, extra, call.parts.ranges);
    if (!pinned.empty()) {
        Enqueued behind = enqueued(call, stream);
        for (const std::uintptr_t address : pinned) {
            behind.pointer(address, Kind::kernel);
        }
    }
}

void launch(const Call& call) {
    const auto& given = as<args::Launch>(call);
    launched(call, given.function, given.stream, given.params, given.extra);
}

void launch_cooperative(const Call& call) {
    const auto& given = as<args::Launch>(call);
    launched(call, given.function, given.stream, given.params, nullptr);
}

void launch_extended(const Call& call) {
    const auto& given = as<args::LaunchEx>(call);
    launched(call, given.function, given.config->stream, given.params, given.extra);
}

void graph_instantiate(const Call& call) {
    const auto& given = as<args::GraphInstantiate>(call);
    call.parts.graphs.instantiated(*given.result, given.graph);
}

void graph_launch(const Call& call) {
    const auto& given = as<args::GraphLaunch>(call);
    Enqueued behind = enqueued(call, given.stream);
    call.parts.graphs.launched(given.graph, behind);
}

void graph_destroy(const Call& call) { call.parts.graphs.destroyed(as<args::OneHandle>(call).handle); }

void graph_update(const Call& call) {
    const auto& given = as<args::GraphUpdate<void>>(call);
    call.parts.graphs.updated(given.executable, given.node);
}

template <typename Params>
void set_node(const Call& call) {
    const auto& given = as<args::GraphUpdate<Params>>(call);
    call.parts.graphs.set(given.executable, given.node, *given.params);
}

void set_child(const Call& call) {
    const auto& given = as<args::GraphUpdate<void>>(call);
    call.parts.graphs.set_child(given.executable, given.node, const_cast<cuda::Handle>(given.params));
}

void set_any_node(const Call& call) {
    const auto& given = as<args::GraphUpdate<cuda::NodeParams>>(call);
    switch (given.params->type) {
        case cuda::kNodeMemcpy:
            return call.parts.graphs.set(given.executable, given.node, given.params->copy.copy);
        case cuda::kNodeMemset:
            return call.parts.graphs.set(given.executable, given.node, given.params->memset);
        case cuda::kNodeKernel:
            return call.parts.graphs.set(given.executable, given.node, given.params->kernel);
        case cuda::kNodeGraph:
            return call.parts.graphs.set_child(given.executable, given.node, given.params->graph);
        default:
            return;
    }
}

struct Entry {
    int site = -1;
    bool per_thread = false;
    void (*handler)(const Call&) = nullptr;
};
constexpr std::size_t kNumbersEnd = 1024;

constexpr std::array<Entry, kNumbersEnd> table() {
    constexpr int before = cupti::kEnter;  // what takes something away must be seen before it happens
    constexpr int after = cupti::kExit;
    std::array<Entry, kNumbersEnd> made{};
#define CALL(name, number, when, handler, per_thread) made[number] = {when, per_thread, handler};
#include "watch/calls.def"
#undef CALL
    return made;
}

}  // namespace

void Calls::on_call(std::uint32_t number, const cupti::CallbackData& data) {
    static constexpr std::array<Entry, kNumbersEnd> kTable = table();
    if (number >= kTable.size() || kTable[number].site != data.site) {
        return;
    }
    Thread& thread = self();
    const bool failed =
        data.site == cupti::kExit && data.result != nullptr && *static_cast<const int*>(data.result) != 0;
    if (thread.inside || failed) {
        return;
    }
    thread.inside = true;
    kTable[number].handler({*this, data.arguments, data.context, kTable[number].per_thread});
    thread.inside = false;
}

}  // namespace kvfix::watch
