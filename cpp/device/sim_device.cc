#include "device/sim_device.h"

#include <utility>

#include "device/check_call.h"
#include "device/sim_copies.h"
#include "device/sim_kernels.h"

namespace kvfix {
namespace {

[[noreturn]] void unknown_handle(const char* what, std::uintptr_t value) {
    throw DeviceError(std::string(what) + " " + std::to_string(value) +
                      " is unknown to the simulated device: never created here, or already gone");
}

void throw_failure(const SimFailure& failure) {
    if (failure) {
        throw DeviceError(*failure);
    }
}

}  // namespace

SimDevice::SimDevice(std::uint64_t seed) : seed_(seed), random_(seed) {}

SimDevice::~SimDevice() {
    for (const auto& [handle, gate] : gates_) {
        gate->complete({});
    }
    streams_.clear();  // each stream drains: with all gates open, every event that it waits for will come
}

void SimDevice::fail_operation(std::uint64_t ordinal) {
    if (ordinal == 0) {
        throw DeviceError("fail_operation(0): the next operation is number 1");
    }
    const std::lock_guard guard(mutex_);
    operations_until_fault_ = ordinal;
}

void SimDevice::unplug() { unplugged_ = true; }

std::string SimDevice::name() const { return "simulated device, seed " + std::to_string(seed_); }

StreamHandle SimDevice::create_stream() {
    const std::lock_guard guard(mutex_);
    const StreamHandle stream{++handles_};
    streams_.emplace(stream.value, std::make_shared<SimStream>(stream.value, seed_));
    return stream;
}

void SimDevice::destroy_stream(StreamHandle stream) {
    if (stream.value == 0) {
        throw DeviceError("stream 0 is the default stream: it cannot be destroyed");
    }
    std::shared_ptr<SimStream> taken;
    {
        const std::lock_guard guard(mutex_);
        taken = find_stream(stream);
        streams_.erase(stream.value);
    }
    taken->synchronize();
}

void SimDevice::synchronize(StreamHandle stream) {
    std::shared_ptr<SimStream> found;
    {
        const std::lock_guard guard(mutex_);
        found = find_stream(stream);
    }
    found->synchronize();
}

EventHandle SimDevice::create_event() {
    const std::lock_guard guard(mutex_);
    const EventHandle event{++handles_};
    events_.emplace(event.value, nullptr);
    return event;
}

void SimDevice::destroy_event(EventHandle event) {
    const std::lock_guard guard(mutex_);
    find_event(event);
    events_.erase(event.value);
}

void SimDevice::record(EventHandle event, StreamHandle stream) {
    auto recording = std::make_shared<SimLatch>();
    const std::lock_guard guard(mutex_);
    std::shared_ptr<SimLatch>& latest = find_event(event);
    find_stream(stream)->enqueue(SimStream::Signal{recording});
    latest = std::move(recording);
}

bool SimDevice::done(EventHandle event) {
    std::shared_ptr<SimLatch> recording;
    {
        const std::lock_guard guard(mutex_);
        recording = find_event(event);
    }
    if (recording == nullptr) {
        return true;
    }
    if (!recording->done()) {
        return false;
    }
    throw_failure(recording->wait());
    return true;
}

void SimDevice::wait(EventHandle event) {
    std::shared_ptr<SimLatch> recording;
    {
        const std::lock_guard guard(mutex_);
        recording = find_event(event);
    }
    if (recording != nullptr) {
        throw_failure(recording->wait());
    }
}

void SimDevice::make_wait(StreamHandle stream, EventHandle event) {
    const std::lock_guard guard(mutex_);
    const std::shared_ptr<SimStream> waiter = find_stream(stream);
    if (const std::shared_ptr<SimLatch> recording = find_event(event)) {
        waiter->enqueue(SimStream::Await{recording});
    }
}

void* SimDevice::map_pinned(std::size_t bytes) {
    require_plugged("map_pinned");
    return memory_.map(bytes);
}

void SimDevice::unmap_pinned(void* memory, std::size_t bytes) { memory_.unmap(memory, bytes); }

void SimDevice::register_host(void* memory, std::size_t bytes) {
    require_plugged("register_host");
    memory_.register_host(memory, bytes);
}

void SimDevice::unregister_host(void* memory) { memory_.unregister_host(memory); }

std::uintptr_t SimDevice::device_address(void* pinned) {
    const auto address = reinterpret_cast<std::uintptr_t>(pinned);
    SimMemory::Access(memory_).require_pinned(address);
    return address;
}

std::uintptr_t SimDevice::allocate(std::size_t bytes) {
    require_plugged("allocate");
    return memory_.allocate(bytes);
}

void SimDevice::release(std::uintptr_t address) { memory_.release(address); }

void SimDevice::copy(const CopySpan& span, StreamHandle stream) {
    require_spans({&span, 1}, SimMemory::Access(memory_));
    enqueue_work("copy", [span](const SimMemory::Access& access) { copy_spans({&span, 1}, access); }, stream);
}

void SimDevice::copy_rows(const RowCopy& rows, StreamHandle stream) {
    require_rows(rows, SimMemory::Access(memory_));
    enqueue_work("copy_rows", [rows](const SimMemory::Access& access) { kvfix::copy_rows(rows, access); }, stream);
}

void SimDevice::copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) {
    std::vector<CopySpan> own(spans.begin(), spans.end());
    require_spans(own, SimMemory::Access(memory_));
    if (order == SourceOrder::any && prefetches()) {
        auto sources = prefetch(own, SimMemory::Access(memory_));
        const auto work = [own = std::move(own), sources = std::move(sources)](const SimMemory::Access& access) {
            deliver(own, sources, access);
        };
        enqueue_work("copy_batch", work, stream);
    } else {
        const auto work = [own = std::move(own)](const SimMemory::Access& access) { copy_spans(own, access); };
        enqueue_work("copy_batch", work, stream);
    }
}

void SimDevice::launch(const KernelCall& call, StreamHandle stream) {
    check_call(call);
    enqueue_work(kernel_name(call), [call](const SimMemory::Access& access) { run_kernel(call, access); }, stream);
}

GraphHandle SimDevice::capture_copies(std::span<const CopySpan> spans) {
    require_spans(spans, SimMemory::Access(memory_));
    const std::lock_guard guard(mutex_);
    const GraphHandle graph{++handles_};
    graphs_.emplace(graph.value, std::make_shared<const std::vector<CopySpan>>(spans.begin(), spans.end()));
    return graph;
}

void SimDevice::launch_graph(GraphHandle graph, StreamHandle stream) {
    std::shared_ptr<const std::vector<CopySpan>> spans;
    {
        const std::lock_guard guard(mutex_);
        spans = find_graph(graph);
    }
    enqueue_work("launch_graph", [spans](const SimMemory::Access& access) { copy_spans(*spans, access); }, stream);
}

void SimDevice::destroy_graph(GraphHandle graph) {
    const std::lock_guard guard(mutex_);
    find_graph(graph);
    graphs_.erase(graph.value);  // pending launches hold their own share
}

GateHandle SimDevice::close_gate(StreamHandle stream) {
    auto latch = std::make_shared<SimLatch>();
    const std::lock_guard guard(mutex_);
    find_stream(stream)->enqueue(SimStream::Await{latch});
    const GateHandle gate{++handles_};
    gates_.emplace(gate.value, std::move(latch));
    return gate;
}

void SimDevice::open_gate(GateHandle gate) {
    const std::lock_guard guard(mutex_);
    const auto found = gates_.find(gate.value);
    if (found == gates_.end()) {
        unknown_handle("gate", gate.value);
    }
    found->second->complete({});
    gates_.erase(found);  // the stream holds its own share until it has passed
}

void SimDevice::enqueue_work(const char* what, Work work, StreamHandle stream) {
    const std::lock_guard guard(mutex_);
    const std::shared_ptr<SimStream> found = find_stream(stream);
    found->enqueue([this, what, work = std::move(work), fails = next_operation_fails()] {
        require_plugged(what);
        if (fails) {
            throw DeviceError(std::string(what) + ": failed on request, by fail_operation()");
        }
        work(SimMemory::Access(memory_));
    });
}

void SimDevice::require_plugged(const char* what) const {
    if (unplugged_) {
        throw DeviceError(std::string(what) + ": the simulated device was unplugged");
    }
}

// Whether a batch with SourceOrder::any reads its sources at the call; otherwise it reads them when it executes. CUDA
// allows both, so both must occur: on average every second batch reads early.
bool SimDevice::prefetches() {
    const std::lock_guard guard(mutex_);
    return random_() % 2 == 0;
}

std::shared_ptr<SimStream> SimDevice::find_stream(StreamHandle stream) {
    const auto found = streams_.find(stream.value);
    if (found != streams_.end()) {
        return found->second;
    }
    if (stream.value != 0) {
        unknown_handle("stream", stream.value);
    }
    return streams_.emplace(0, std::make_shared<SimStream>(0, seed_)).first->second;
}

std::shared_ptr<SimLatch>& SimDevice::find_event(EventHandle event) {
    const auto found = events_.find(event.value);
    if (found == events_.end()) {
        unknown_handle("event", event.value);
    }
    return found->second;
}

std::shared_ptr<const std::vector<CopySpan>>& SimDevice::find_graph(GraphHandle graph) {
    const auto found = graphs_.find(graph.value);
    if (found == graphs_.end()) {
        unknown_handle("graph", graph.value);
    }
    return found->second;
}

bool SimDevice::next_operation_fails() { return operations_until_fault_ != 0 && --operations_until_fault_ == 0; }

std::unique_ptr<Device> open_sim_device(std::uint64_t seed) { return std::make_unique<SimDevice>(seed); }

}  // namespace kvfix
