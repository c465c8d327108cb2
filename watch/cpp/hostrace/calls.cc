#include "hostrace/calls.h"

#include <csignal>
#include <cstdint>

#include <array>
#include <utility>

#include "hostrace/copies.h"
#include "hostrace/errno_kept.h"
#include "hostrace/memory_calls.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

struct Call {
    Calls& parts;
    const void* context;
    bool per_thread;

    StreamKey key(cuda::Handle stream) const;
    // Of a stream that gets work now.
    StreamKey works_on(cuda::Handle stream) const;
    Enqueued behind(const StreamKey& key) const;
    Enqueued on(cuda::Handle stream) const { return behind(works_on(stream)); }
};

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

StreamKey Call::key(cuda::Handle stream) const {
    StreamKey key{context, stream, 0};
    if (number(stream) == cuda::kLegacyStream) {
        key.stream = nullptr;
    } else if (number(stream) == cuda::kThreadStream || (per_thread && stream == nullptr)) {
        key.stream = reinterpret_cast<cuda::Handle>(cuda::kThreadStream);
        key.thread = self().id;
        parts.thread_end.ask(&parts);
    }
    return key;
}

StreamKey Call::works_on(cuda::Handle stream) const {
    const StreamKey its = key(stream);
    if (its.stream == nullptr) {
        parts.order.worked(context);
    }
    return its;
}

Enqueued Call::behind(const StreamKey& key) const {
    return {parts.watch, parts.streams, parts.order, parts.ranges, key};
}

bool pageable(const Call& call, std::uintptr_t address) {
    int type = 0;
    return address != 0 && call.parts.driver.pointer_attribute != nullptr && call.parts.ranges.find(address).empty() &&
           call.parts.driver.pointer_attribute(&type, cuda::kMemoryTypeOf, address) != cuda::kSuccess;
}

void waited_for_stream(const Call& call, cuda::Handle stream) {
    call.parts.order.observe_stream(call.key(stream));
    call.parts.watch.observed();
}

// A copy to pageable memory returns when it is over.
void waited_for_pageable(const Call& call, const Shape& dst, cuda::Handle stream) {
    const Watcher& watch = call.parts.watch;
    if (!(watch.guard.idle() && watch.digests.idle()) && pageable(call, dst.begin)) {
        waited_for_stream(call, stream);
    }
}

void add_sides(const Sides& sides, Enqueued& behind) {
    behind.add({sides.src, Kind::copy, false});
    behind.add({sides.dst, Kind::copy, true});
}

// Of a batch. With an order that says so, the source is free when the call returns: the driver keeps to that where it is
// pinned, or small. Larger pageable ones it reads later, whatever the order says. Every other order lets the driver read
// them later: those of CUDA 13.0 still read small ones in the call, newer ones do not.
void add_batched(const Call& call, const Sides& sides, int order, Enqueued& behind) {
    constexpr std::size_t kReadInCall = std::size_t{64} << 10;
    const bool promised = order == cuda::kOrderDuringCall;
    const bool pinned_source = !call.parts.ranges.find(sides.src.begin).empty();
    if (!promised && pinned_source) {
        behind.add({sides.src, Kind::copy, false});
    } else if (!pinned_source && !(promised && sides.src.width <= kReadInCall) && pageable(call, sides.src.begin)) {
        behind.add_pageable({sides.src, promised ? Kind::promised_copy : Kind::copy, false});
    }
    behind.add({sides.dst, Kind::copy, true});
    if (!pinned_source && pageable(call, sides.dst.begin)) {
        behind.add_pageable({sides.dst, Kind::copy, true});
    }
}

// What follows takes what the driver's functions take, or the first of it.

void pinned(const Call& call, std::uintptr_t begin, std::size_t bytes, bool registered) {
    call.parts.ranges.add(begin, bytes, registered, call.parts.watch.stacks.take());
}

void host_alloc(const Call& call, void** result, std::size_t bytes) { pinned(call, number(*result), bytes, false); }

// Code that is in there would not run any more where we have opened a page again, and handlers have to find their stack.
void leave_code_and_stack_alone(Watcher& watch, Span registered) {
    for (const Span part : watch.guard.with_other_rights(registered)) {
        leave_alone(watch, pages_around(part));
    }
    stack_t stack{};
    if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE) == 0) {
        leave_alone(stack.ss_sp, stack.ss_size);
    }
}

void host_register(const Call& call, std::uintptr_t begin, std::size_t bytes, unsigned flags) {
    if ((flags & cuda::kRegisterReadOnly) == 0) {  // nobody writes it, and we may not make it writable
        pinned(call, begin, bytes, true);
        leave_code_and_stack_alone(call.parts.watch, {begin, begin + bytes});
    }
}

Span no_longer_pinned(const Call& call, std::uintptr_t begin) {
    const Span range = call.parts.ranges.remove(begin);
    call.parts.watch.left_alone.remove(pages_around(range));
    return range;
}

void give_back(const Call& call, std::uintptr_t begin, const char* how) {
    const Span range = no_longer_pinned(call, begin);
    call.parts.watch.give_back(range.begin, range.end - range.begin, how);
}

// It is no race where something still uses it.
void forget(const Call& call, std::uintptr_t begin) {
    const Span range = no_longer_pinned(call, begin);
    if (!range.empty()) {
        call.parts.watch.digests.forget(range);
        static_cast<void>(call.parts.watch.guard.give_back(range.begin, range.end - range.begin));
    }
}

void host_free(const Call& call, std::uintptr_t begin) { give_back(call, begin, "cuMemFreeHost"); }

void host_unregister(const Call& call, std::uintptr_t begin) { give_back(call, begin, "cuMemHostUnregister"); }

void unknown_order(const Call& call) { call.parts.order.lose_track(); }

void memory_map(const Call& call, std::uintptr_t begin, std::size_t bytes, std::size_t /*offset*/,
                std::uint64_t allocation) {
    call.parts.host_memory.mapped(begin, bytes, allocation);
}

// What is mapped is nobody's memory until somebody may reach it. Ours to protect is what the host may read and write.
void memory_access(const Call& call, std::uintptr_t begin, std::size_t bytes, const cuda::Access* given,
                   std::size_t count) {
    for (std::size_t at = 0; at < count; ++at) {
        for (const Span piece : HostMemory::of_host(given[at].location) ? call.parts.host_memory.mapped_in(begin, bytes)
                                                                        : std::vector<Span>{}) {
            if (given[at].flags == cuda::kAccessBoth) {
                pinned(call, piece.begin, piece.end - piece.begin, false);
            } else {
                forget(call, piece.begin);
            }
        }
    }
}

void memory_unmap(const Call& call, std::uintptr_t begin, std::size_t bytes) {
    for (const Span piece : call.parts.host_memory.mapped_in(begin, bytes)) {
        give_back(call, piece.begin, "cuMemUnmap");
        call.parts.host_memory.unmapped(piece.begin);
    }
}

void pool_create(const Call& call, const cuda::Handle* result, const cuda::AllocationProperties* made) {
    call.parts.host_memory.pool(*result, made->type, made->location);
}

void pool_of_place(const Call& call, const cuda::Handle* result, const cuda::Location* place, int type) {
    call.parts.host_memory.pool(*result, type, *place);
}

void pool_destroy(const Call& call, cuda::Handle pool) { call.parts.host_memory.pool_destroyed(pool); }

void pool_alloc(const Call& call, const std::uintptr_t* result, std::size_t bytes, cuda::Handle pool,
                cuda::Handle stream) {
    const HostMemory::Pool kind = call.parts.host_memory.kind_of(pool);
    if (kind == HostMemory::Pool::managed) {
        unknown_order(call);
    } else if (kind == HostMemory::Pool::of_host && !call.parts.streams.capturing(stream)) {
        pinned(call, *result, bytes, false);
    }
}

void pool_free(const Call& call, std::uintptr_t begin) { give_back(call, begin, "cuMemFree"); }

// Who frees in the order of the stream need not wait. From then on the pool gives the memory to others.
void pool_free_in_order(const Call& call, std::uintptr_t begin) { forget(call, begin); }

// A copy that returns when it is over is one of the default stream.
void waited_for_copy(const Call& call) {
    if (!call.per_thread) {
        call.parts.order.worked(call.context);
    }
    waited_for_stream(call, nullptr);
}

void waited_for_event(const Call& call, cuda::Handle event) {
    call.parts.order.observe_event(event);
    call.parts.watch.observed();
}

void waited_for_events(const Call& call, float* /*ms*/, cuda::Handle first, cuda::Handle second) {
    waited_for_event(call, first);
    waited_for_event(call, second);
}

void waited_for_given_context(const Call& call, const void* context) {
    call.parts.order.observe_context(context);
    call.parts.watch.observed();
}

void waited_for_context(const Call& call) { waited_for_given_context(call, call.context); }

// The driver waits for every device before it takes memory back.
void waited_for_all(const Call& call) { waited_for_given_context(call, nullptr); }

// Graphs record events as well: where the driver does not tell of which nodes, only what is recorded later is known.
void event_create(const Call& call, const cuda::Handle* event) {
    const Driver& driver = call.parts.driver;
    if (driver.without_graphs == nullptr && driver.event_node != nullptr) {
        call.parts.order.created(*event);
    }
}

void event_record(const Call& call, cuda::Handle event, cuda::Handle stream) {
    call.parts.order.record(event, call.key(stream));
}

void event_unknown(const Call& call, cuda::Handle event) { call.parts.order.forget_event(event); }

// The device goes on when the host has done something: a function of the program, or a value that it writes.
void waits_for_host(const Call& call, cuda::Handle stream) {
    const StreamKey key = call.key(stream);
    call.parts.order.waits_for_host(key, call.parts.streams.mark(key));
}

void stream_wait(const Call& call, cuda::Handle stream, cuda::Handle event) {
    if (call.parts.order.wait(call.key(stream), event)) {
        waits_for_host(call, stream);
    }
}

void observes_in_the_stream(const Call& call, cuda::Handle stream) {
    call.parts.watch.digests.let_go([&] { call.parts.order.observe_stream(call.key(stream)); });
}

// The function knows that everything before it is over.
void host_function(const Call& call, cuda::Handle stream) {
    if (!call.parts.streams.capturing(stream)) {
        observes_in_the_stream(call, stream);
        waits_for_host(call, stream);
    }
}

// It may have run when the call returns.
void host_function_comes(const Call& call, cuda::Handle stream) {
    if (!call.parts.streams.capturing(stream)) {
        observes_in_the_stream(call, stream);
    }
}

void waits_for_value(const Call& call, cuda::Handle stream) {
    if (!call.parts.watch.gates_are_busy) {
        waits_for_host(call, stream);
    }
}

void writes_value(const Call& call, cuda::Handle stream) { call.parts.order.perhaps_observed(call.key(stream)); }

void waits_and_writes(const Call& call, cuda::Handle stream) {
    writes_value(call, stream);
    waits_for_value(call, stream);
}

void waits_for_semaphore(const Call& call, cuda::Handle /*semaphores*/, cuda::Handle /*values*/, unsigned /*count*/,
                         cuda::Handle stream) {
    waits_for_host(call, stream);
}

void stream_destroy(const Call& call, cuda::Handle stream) {
    call.parts.streams.forget_stream(call.context, stream);
    call.parts.order.forget_stream(call.context, stream);
}

void context_destroy(const Call& call, cuda::Handle context) {
    call.parts.watch.guard.forget_context(context);
    call.parts.watch.digests.forget_context(context);
    call.parts.streams.forget_context(context);
    call.parts.order.forget_context(context);
}

void contexts_reset(const Call& call) { context_destroy(call, nullptr); }

// Handles of functions may come again for something else.
void unload(const Call& call) { call.parts.kernels.forget(); }

void copy(const Call& call, std::uintptr_t dst, std::uintptr_t src, std::size_t bytes, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    add_sides({line(src, bytes), line(dst, bytes)}, behind);
    waited_for_pageable(call, line(dst, bytes), stream);
}

void copy_from_array(const Call& call, std::uintptr_t dst, cuda::Handle /*array*/, std::size_t /*offset*/,
                     std::size_t bytes, cuda::Handle stream) {
    call.on(stream).add({line(dst, bytes), Kind::copy, true});
    waited_for_pageable(call, line(dst, bytes), stream);
}

void copy_to_array(const Call& call, cuda::Handle /*array*/, std::size_t /*offset*/, std::uintptr_t src,
                   std::size_t bytes, cuda::Handle stream) {
    call.on(stream).add({line(src, bytes), Kind::copy, false});
}

// The sides may lie in the memory of two devices, which nobody watches here, or be the host's.
void copy_peer(const Call& call, std::uintptr_t dst, const void* /*context*/, std::uintptr_t src,
               const void* /*context*/, std::size_t bytes, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    add_sides({line(src, bytes), line(dst, bytes)}, behind);
}

template <typename Copy>
void copy_shaped(const Call& call, const Copy* copy, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    const Sides sides = sides_of(*copy);
    add_sides(sides, behind);
    waited_for_pageable(call, sides.dst, stream);
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
        add_batched(call, {line(srcs[at], bytes[at]), line(dsts[at], bytes[at])}, order, behind);
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
        add_batched(call, sides_of(copies[at]), copies[at].order, behind);
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
    const StreamKey key = call.works_on(stream);
    if (!pinned.empty()) {
        call.parts.order.perhaps_observed(key);  // it may set a flag there
        Enqueued behind = call.behind(key);
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
    for (unsigned at = 0; at < config->attributes_count && config->attributes != nullptr; ++at) {
        const cuda::LaunchAttribute& attribute = config->attributes[at];
        if (attribute.id == cuda::kLaunchRecords || attribute.id == cuda::kLaunchCompletionRecords) {
            event_unknown(call, attribute.event);
        }
    }
}

void graph_add_node(const Call& call, const cuda::Handle* result, cuda::Handle graph, const cuda::Handle* /*others*/,
                    const void* /*edges*/, std::size_t /*count*/, const cuda::NodeParams* params) {
    call.parts.graphs.added(*result, graph, *params);
}

void graph_add_node_v1(const Call& call, const cuda::Handle* result, cuda::Handle graph, const cuda::Handle* others,
                       std::size_t count, const cuda::NodeParams* params) {
    graph_add_node(call, result, graph, others, nullptr, count, params);
}

void graph_forget(const Call& call, cuda::Handle graph) { call.parts.graphs.forget(graph); }

void graph_instantiate(const Call& call, cuda::Handle* result, cuda::Handle graph) {
    call.parts.graphs.instantiated(*result, graph);
}

void graph_launch_comes(const Call& call, cuda::Handle executable, cuda::Handle stream) {
    if (call.parts.graphs.with_host(executable)) {
        host_function_comes(call, stream);
    }
}

void graph_launch(const Call& call, cuda::Handle executable, cuda::Handle stream) {
    Enqueued behind = call.on(stream);
    const Graphs::Ends ends = call.parts.graphs.launched(executable, behind);
    for (cuda::Handle event : ends.events) {
        event_record(call, event, stream);
    }
    count(call.parts.watch.counts.unread_bodies, ends.unread_bodies ? 1 : 0);
    if (ends.with_host) {
        count(call.parts.watch.counts.own_order);
        host_function(call, stream);
    }
}

void graph_destroy(const Call& call, cuda::Handle executable) { call.parts.graphs.destroyed(executable); }

void graph_update(const Call& call, cuda::Handle executable, cuda::Handle graph) {
    call.parts.graphs.updated(executable, graph);
}

void enable_node(const Call& call, cuda::Handle executable, cuda::Handle node, unsigned enabled) {
    call.parts.graphs.enable(executable, node, enabled != 0);
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
    bool per_thread = false;
    void (*handler)(const Call&, const void* arguments) = nullptr;
};
constexpr std::size_t kNumbersEnd = 1024;
using Table = std::array<std::array<Entry, kNumbersEnd>, 2>;  // by the site

constexpr Table table() {
    constexpr int before = cupti::kEnter;  // what takes something away must be seen before it happens
    constexpr int after = cupti::kExit;
    Table made{};
#define CALL(name, number, when, handler, per_thread) made[when][number] = {per_thread, Spread<handler>::call};
#include "hostrace/calls.def"
#undef CALL
    return made;
}

}  // namespace

void Calls::on_thread_end() {
    if (watch.guard.ended()) {
        return;  // in a child, where a thread that is not here may have held the locks
    }
    streams.forget_thread(self().id);
    order.forget_thread(self().id);
}

void Calls::on_call(std::uint32_t number, const cupti::CallbackData& data) {
    static constexpr Table kTable = table();
    if (number >= kNumbersEnd || data.site < cupti::kEnter || data.site > cupti::kExit) {
        return;
    }
    const Entry& entry = kTable[static_cast<std::size_t>(data.site)][number];
    // Whatever may use the device, or make it wait, is seen when it returns: it has not begun yet.
    const bool unprepared = data.site == cupti::kEnter && kTable[cupti::kExit][number].handler != nullptr &&
                            !streams.prepared(data.context);
    if (entry.handler == nullptr && !unprepared) {
        return;
    }
    Thread& thread = self();
    const bool failed =
        data.site == cupti::kExit && data.result != nullptr && *static_cast<const int*>(data.result) != 0;
    if (thread.inside || failed) {
        return;
    }
    const ErrnoKept of_the_program;
    thread.inside = true;
    if (unprepared) {
        streams.prepare(data.context);
    }
    if (entry.handler != nullptr) {
        entry.handler({*this, data.context, entry.per_thread}, data.arguments);
    }
    thread.inside = false;
}

}  // namespace hostrace
