#include "hostrace/calls.h"

#include <array>
#include <cstdint>
#include <utility>

#include "hostrace/copies.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

struct Call {
    Calls& parts;
    const void* context;
    bool per_thread;

    Enqueued on(cuda::Handle stream) const;
};

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

Enqueued Call::on(cuda::Handle stream) const {
    StreamKey key{context, stream, 0};
    if (number(stream) == cuda::kLegacyStream) {
        key.stream = nullptr;
    } else if (number(stream) == cuda::kThreadStream || (per_thread && stream == nullptr)) {
        key.stream = reinterpret_cast<cuda::Handle>(cuda::kThreadStream);
        key.thread = self().id;
    }
    return {parts.watch, parts.streams, parts.ranges, key};
}

void add_sides(const Sides& sides, int order, Enqueued& behind) {
    if (order != cuda::kOrderDuringCall) {  // else the source is free when the call returns
        behind.add({sides.src, Kind::copy, false});
    }
    behind.add({sides.dst, Kind::copy, true});
}

// What follows takes what the driver's functions take, or the first of it.

// The call that pins memory may wait for the device; the first use of it must not, so what that needs is made here.
void pinned(const Call& call, std::uintptr_t begin, std::size_t bytes, bool registered) {
    call.parts.ranges.add(begin, bytes, registered);
    call.parts.streams.prepare(call.context);
}

void host_alloc(const Call& call, void** result, std::size_t bytes) { pinned(call, number(*result), bytes, false); }

void host_register(const Call& call, std::uintptr_t begin, std::size_t bytes, unsigned flags) {
    if ((flags & cuda::kRegisterReadOnly) == 0) {  // nobody writes it, and we may not make it writable
        pinned(call, begin, bytes, true);
    }
}

void give_back(const Call& call, std::uintptr_t begin, const char* how) {
    const Span range = call.parts.ranges.remove(begin);
    call.parts.watch.give_back(range.begin, range.end - range.begin, how);
}

void host_free(const Call& call, std::uintptr_t begin) { give_back(call, begin, "cuMemFreeHost"); }

void host_unregister(const Call& call, std::uintptr_t begin) { give_back(call, begin, "cuMemHostUnregister"); }

void synchronized(const Call& call) { call.parts.watch.guard.retire(); }

void stream_destroy(const Call& call, cuda::Handle stream) { call.parts.streams.forget_stream(call.context, stream); }

void context_destroy(const Call& call, cuda::Handle context) {
    call.parts.watch.guard.forget_context(context);
    call.parts.streams.forget_context(context);
}

void contexts_reset(const Call& call) { context_destroy(call, nullptr); }

// Handles of functions may come again for something else.
void unload(const Call& call) { call.parts.kernels.forget(); }

void copy(const Call& call, std::uintptr_t dst, std::uintptr_t src, std::size_t bytes, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    add_sides({line(src, bytes), line(dst, bytes)}, 0, behind);
}

void copy_from_array(const Call& call, std::uintptr_t dst, cuda::Handle /*array*/, std::size_t /*offset*/,
                     std::size_t bytes, cuda::Handle stream) {
    call.on(stream).add({line(dst, bytes), Kind::copy, true});
}

void copy_to_array(const Call& call, cuda::Handle /*array*/, std::size_t /*offset*/, std::uintptr_t src,
                   std::size_t bytes, cuda::Handle stream) {
    call.on(stream).add({line(src, bytes), Kind::copy, false});
}

template <typename Copy>
void copy_shaped(const Call& call, const Copy* copy, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    add_sides(sides_of(*copy), 0, behind);
}

void copy_batch(const Call& call, std::uintptr_t* dsts, std::uintptr_t* srcs, std::size_t* bytes, std::size_t count,
                cuda::BatchAttributes* attributes, std::size_t* attribute_starts, std::size_t attributes_count,
                cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    std::size_t attribute = 0;
    for (std::size_t at = 0; at < count; ++at) {
        while (attribute + 1 < attributes_count && attribute_starts[attribute + 1] <= at) {
            ++attribute;
        }
        const int order = attributes_count == 0 ? 0 : attributes[attribute].order;
        add_sides({line(srcs[at], bytes[at]), line(dsts[at], bytes[at])}, order, behind);
    }
}

// The first version has a place for the number of the copy that failed.
void copy_batch_v1(const Call& call, std::uintptr_t* dsts, std::uintptr_t* srcs, std::size_t* bytes, std::size_t count,
                   cuda::BatchAttributes* attributes, std::size_t* attribute_starts, std::size_t attributes_count,
                   std::size_t* /*failed*/, cuda::Handle stream) {
    copy_batch(call, dsts, srcs, bytes, count, attributes, attribute_starts, attributes_count, stream);
}

void copy_batch_3d(const Call& call, std::size_t count, cuda::BatchCopy3d* copies, unsigned long long /*flags*/,
                   cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    for (std::size_t at = 0; at < count; ++at) {
        add_sides(sides_of(copies[at]), copies[at].order, behind);
    }
}

void copy_batch_3d_v1(const Call& call, std::size_t count, cuda::BatchCopy3d* copies, std::size_t* /*failed*/,
                      unsigned long long flags, cuda::Handle stream) {
    copy_batch_3d(call, count, copies, flags, stream);
}

template <typename Value>
void memset(const Call& call, std::uintptr_t dst, Value /*value*/, std::size_t count, cuda::Handle stream) {
    call.on(stream).add({line(dst, count * sizeof(Value)), Kind::memset, true});
}

template <typename Value>
void memset_2d(const Call& call, std::uintptr_t dst, std::size_t pitch, Value /*value*/, std::size_t width,
               std::size_t height, cuda::Handle stream) {
    call.on(stream).add({rectangle(dst, width * sizeof(Value), height, pitch), Kind::memset, true});
}

void launched(const Call& call, cuda::Handle function, cuda::Handle stream, void** params, void** extra) {
    const auto pinned = call.parts.kernels.pinned(function, params, extra, call.parts.ranges);
    if (!pinned.empty()) {
        Enqueued behind = call.on(stream);
        for (const std::uintptr_t address : pinned) {
            behind.add({line(address, 1), Kind::kernel, true, false});
        }
    }
}

void launch(const Call& call, cuda::Handle function, cuda::LaunchShape /*shape*/, cuda::Handle stream, void** params,
            void** extra) {
    launched(call, function, stream, params, extra);
}

void launch_cooperative(const Call& call, cuda::Handle function, cuda::LaunchShape /*shape*/, cuda::Handle stream,
                        void** params) {
    launched(call, function, stream, params, nullptr);
}

void launch_extended(const Call& call, const cuda::LaunchConfig* config, cuda::Handle function, void** params,
                     void** extra) {
    launched(call, function, config->stream, params, extra);
}

void graph_instantiate(const Call& call, cuda::Handle* result, cuda::Handle graph) {
    call.parts.graphs.instantiated(*result, graph);
}

void graph_launch(const Call& call, cuda::Handle executable, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    call.parts.graphs.launched(executable, behind);
}

void graph_destroy(const Call& call, cuda::Handle executable) { call.parts.graphs.destroyed(executable); }

void graph_update(const Call& call, cuda::Handle executable, cuda::Handle graph) {
    call.parts.graphs.updated(executable, graph);
}

template <typename Params>
void set_node(const Call& call, cuda::Handle executable, cuda::Handle node, const Params* params) {
    call.parts.graphs.set(executable, node, *params);
}

void set_child(const Call& call, cuda::Handle executable, cuda::Handle node, cuda::Handle graph) {
    call.parts.graphs.set(executable, node, graph);
}

void set_any_node(const Call& call, cuda::Handle executable, cuda::Handle node, const cuda::NodeParams* params) {
    switch (params->type) {
        case cuda::kNodeMemcpy:
            return set_node(call, executable, node, &params->copy.copy);
        case cuda::kNodeMemset:
            return set_node(call, executable, node, &params->memset);
        case cuda::kNodeKernel:
            return set_node(call, executable, node, &params->kernel);
        case cuda::kNodeGraph:
            return set_node(call, executable, node, &params->graph);
        default:
            return;
    }
}

// Arguments lie behind one another as in a structure of C, from where a handler is called with as many as it takes.
template <auto handler>
struct Spread;
template <typename... Arguments, void (*handler)(const Call&, Arguments...)>
struct Spread<handler> {
    static constexpr auto kOffsets = [] {
        std::array<std::size_t, sizeof...(Arguments) + 1> offsets{};
        std::size_t at = 0;
        std::size_t end = 0;
        ((offsets[at] = (end + alignof(Arguments) - 1) / alignof(Arguments) * alignof(Arguments),
          end = offsets[at++] + sizeof(Arguments)),
         ...);
        offsets[at] = end;
        return offsets;
    }();

    static void call(const Call& call, const void* arguments) {
        const auto* const from = static_cast<const char*>(arguments);
        [&]<std::size_t... at>(std::index_sequence<at...>) {
            handler(call, *reinterpret_cast<const Arguments*>(from + kOffsets[at])...);
        }(std::index_sequence_for<Arguments...>{});
    }
};

struct Entry {
    int site = -1;
    bool per_thread = false;
    void (*handler)(const Call&, const void* arguments) = nullptr;
};
constexpr std::size_t kNumbersEnd = 1024;

constexpr std::array<Entry, kNumbersEnd> table() {
    constexpr int before = cupti::kEnter;  // what takes something away must be seen before it happens
    constexpr int after = cupti::kExit;
    std::array<Entry, kNumbersEnd> made{};
#define CALL(name, number, when, handler, per_thread) made[number] = {when, per_thread, Spread<handler>::call};
#include "hostrace/calls.def"
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
    kTable[number].handler({*this, data.context, kTable[number].per_thread}, data.arguments);
    thread.inside = false;
}

}  // namespace hostrace
