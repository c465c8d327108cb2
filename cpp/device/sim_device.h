// A device without a GPU. Streams are threads (sim_stream.h), device memory is host heap (sim_memory.h), and kernels
// are their references. It keeps CUDA's promises and breaks whatever CUDA does not promise: copies and kernels read
// their source when they execute, which is later; with SourceOrder::any they may have read it before; and only events
// order two streams.
//
// Where it differs from a GPU:
// - An error breaks its stream and the streams that wait for it, not the whole device; it is never cleared. Destroy the
//   stream and create another.
// - Handing memory back does not wait for the work that uses it: that work fails when its turn comes. A GPU may wait,
//   fault, or read what is there by then; the caller was early in each case.
// - The default stream (handle 0) begins on first use and orders nothing but itself.
// - destroy_stream and synchronize wait behind a closed gate until another thread opens it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "device/sim_memory.h"
#include "device/sim_stream.h"

namespace kvfix {

class SimDevice final : public Device {
  public:
    explicit SimDevice(std::uint64_t seed);
    // Opens every gate, runs what is queued and joins the streams. Errors that no caller asked for are lost here. Then
    // all of its memory is gone. No other call may be in progress.
    ~SimDevice() override;

    // Faults are for tests of the layers above. An operation is a copy, copy_rows, copy_batch or launch, in a graph
    // too. An operation that fails has done nothing, and fails when it executes, in its stream.
    //
    // Makes the ordinal-th operation enqueued from now on fail, counted over all streams; 1 is the next. One fault at a
    // time.
    void fail_operation(std::uint64_t ordinal);
    // Every operation that has not begun fails, for ever. Allocations and mappings fail at the call.
    void unplug();

    std::string name() const override;
    bool simulated() const override { return true; }
    bool has_kernels() const override { return true; }
    std::uint32_t multiprocessors() const override { return 16; }  // a small GPU
    bool has_batched_copy() const override { return true; }

    StreamHandle create_stream() override;
    void destroy_stream(StreamHandle stream) override;  // throws the stream's failure, after destroying it
    void synchronize(StreamHandle stream) override;

    EventHandle create_event() override;
    void destroy_event(EventHandle event) override;  // streams that wait for it keep waiting
    void record(EventHandle event, StreamHandle stream) override;
    bool done(EventHandle event) override;  // throws the failure of the stream before the record; so does wait()
    void wait(EventHandle event) override;
    void make_wait(StreamHandle stream, EventHandle event) override;

    void* map_pinned(std::size_t bytes) override;
    void unmap_pinned(void* memory, std::size_t bytes) override;
    void register_host(void* memory, std::size_t bytes) override;
    void unregister_host(void* memory) override;
    std::uintptr_t device_address(void* pinned) override;
    std::uintptr_t allocate(std::size_t bytes) override;
    void release(std::uintptr_t address) override;

    void copy(const CopySpan& span, StreamHandle stream) override;
    void copy_rows(const RowCopy& rows, StreamHandle stream) override;
    void copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) override;
    void launch(const KernelCall& call, StreamHandle stream) override;

    GraphHandle capture_copies(std::span<const CopySpan> spans) override;
    void launch_graph(GraphHandle graph, StreamHandle stream) override;
    void destroy_graph(GraphHandle graph) override;

    GateHandle close_gate(StreamHandle stream) override;
    void open_gate(GateHandle gate) override;

  private:
    using Work = std::function<void(const SimMemory::Access&)>;

    void enqueue_work(const char* what, Work work, StreamHandle stream);
    void require_plugged(const char* what) const;
    bool prefetches();
    // The caller holds mutex_.
    std::shared_ptr<SimStream> find_stream(StreamHandle stream);
    std::shared_ptr<SimLatch>& find_event(EventHandle event);
    std::shared_ptr<const std::vector<CopySpan>>& find_graph(GraphHandle graph);
    bool next_operation_fails();

    const std::uint64_t seed_;
    SimMemory memory_;  // outlives the streams, whose work uses it
    std::atomic<bool> unplugged_ = false;

    // Guards everything below. Lock order: mutex_, then a stream's own. Nobody waits for a stream or an event while
    // holding it.
    std::mutex mutex_;
    std::mt19937_64 random_;
    std::uint64_t handles_ = 0;                 // never used twice, so that a stale handle is noticed
    std::uint64_t operations_until_fault_ = 0;  // 0 if no fault is planned
    std::unordered_map<std::uintptr_t, std::shared_ptr<SimLatch>> events_;  // the latest record; null before the first
    std::unordered_map<std::uintptr_t, std::shared_ptr<SimLatch>> gates_;
    std::unordered_map<std::uintptr_t, std::shared_ptr<const std::vector<CopySpan>>> graphs_;
    std::unordered_map<std::uintptr_t, std::shared_ptr<SimStream>> streams_;
};

// The simulated device behind one that open_device() has made. Throws std::invalid_argument about any other.
SimDevice& simulated_device(Device& device);

}  // namespace kvfix
