// The simulated device with extras for tests of staging: a step that runs at the moment when a thread begins to wait
// (so that a test shows a wait without timing one), launches that fail at the call, no kernels if so asked, and a watch
// on events.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/sim_device.h"

namespace kvfix {

// What a shipment asks of a driver.
enum class DriverCall : std::uint8_t { copy, launch, record, ask, wait, make_wait };
inline constexpr std::size_t kDriverCalls = 6;

// Whether this thread is inside of a device, whose own allocations are not the caller's.
inline thread_local bool is_in_device = false;

class ProbeDevice final : public Device {
  public:
    explicit ProbeDevice(std::uint64_t seed) : sim_(seed) {}

    SimDevice& sim() { return sim_; }
    // Runs once, in the next thread that waits for an event or synchronizes, just before it blocks.
    void at_next_wait(std::function<void()> step) { set(at_wait_, std::move(step)); }
    void at_next_synchronize(std::function<void()> step) { set(at_synchronize_, std::move(step)); }
    // Refuses the ordinal-th launch from now on at the call, and leaves its stream unharmed.
    void refuse_launch(std::uint64_t ordinal) { launches_until_refusal_ = ordinal; }
    // Refuses the ordinal-th of the DriverCalls from now on.
    void refuse_call(std::uint64_t ordinal) { calls_until_refusal_ = ordinal; }
    bool has_refused() const { return calls_until_refusal_ == 0; }
    std::uint64_t calls(DriverCall kind) const { return calls_[static_cast<std::size_t>(kind)]; }
    void leave_kernels_out() { kernels_ = false; }
    // For the end of a test, even a failed one: opens every gate and forgets the steps, so that nothing hangs.
    void let_everything_run() {
        const std::lock_guard guard(mutex_);
        at_wait_ = at_synchronize_ = nullptr;
        for (const std::uintptr_t gate : closed_) {
            sim_.open_gate({gate});
        }
        closed_.clear();
    }
    StreamHandle newest_stream() const { return newest_stream_; }
    struct Batch {
        std::size_t spans;
        StreamHandle stream;
    };
    std::vector<Batch> batches() {
        const std::lock_guard guard(mutex_);
        return batches_;
    }
    // How often the device was asked whether an event is done.
    std::uint64_t questions() const { return calls(DriverCall::ask); }
    // The number of times that an event was recorded while its last record was pending.
    std::uint64_t events_shared() const { return events_shared_; }

    std::string name() const override { return sim_.name(); }
    bool simulated() const override { return true; }
    bool has_kernels() const override { return kernels_; }
    std::uint32_t multiprocessors() const override { return sim_.multiprocessors(); }
    bool has_batched_copy() const override { return true; }
    StreamHandle create_stream() override { return newest_stream_ = sim_.create_stream(); }
    void destroy_stream(StreamHandle stream) override { sim_.destroy_stream(stream); }
    void synchronize(StreamHandle stream) override {
        step(at_synchronize_);
        sim_.synchronize(stream);
    }
    EventHandle create_event() override { return sim_.create_event(); }
    void destroy_event(EventHandle event) override { sim_.destroy_event(event); }
    void record(EventHandle event, StreamHandle stream) override {
        const Inside inside(*this, DriverCall::record);
        events_shared_ += pending(event) ? 1 : 0;
        sim_.record(event, stream);
    }
    bool done(EventHandle event) override {
        const Inside inside(*this, DriverCall::ask);
        return sim_.done(event);
    }
    void wait(EventHandle event) override {
        const Inside inside(*this, DriverCall::wait);
        step(at_wait_);
        sim_.wait(event);
    }
    void make_wait(StreamHandle stream, EventHandle event) override {
        const Inside inside(*this, DriverCall::make_wait);
        sim_.make_wait(stream, event);
    }
    void* map_pinned(std::size_t bytes) override { return sim_.map_pinned(bytes); }
    void unmap_pinned(void* memory, std::size_t bytes) override { sim_.unmap_pinned(memory, bytes); }
    void register_host(void* memory, std::size_t bytes) override { sim_.register_host(memory, bytes); }
    void unregister_host(void* memory) override { sim_.unregister_host(memory); }
    std::uintptr_t device_address(void* pinned) override { return sim_.device_address(pinned); }
    std::uintptr_t allocate(std::size_t bytes) override { return sim_.allocate(bytes); }
    void release(std::uintptr_t address) override { sim_.release(address); }
    void copy(const CopySpan& span, StreamHandle stream) override {
        const Inside inside(*this, DriverCall::copy);
        sim_.copy(span, stream);
    }
    void copy_rows(const RowCopy& rows, StreamHandle stream) override {
        const Inside inside(*this, DriverCall::copy);
        sim_.copy_rows(rows, stream);
    }
    void copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) override {
        const Inside inside(*this, DriverCall::copy);
        {
            const std::lock_guard guard(mutex_);
            batches_.push_back({spans.size(), stream});
        }
        sim_.copy_batch(spans, order, stream);
    }
    void launch(const KernelCall& call, StreamHandle stream) override {
        const Inside inside(*this, DriverCall::launch);
        if (launches_until_refusal_ != 0 && --launches_until_refusal_ == 0) {
            throw DeviceError("launch refused on request");
        }
        sim_.launch(call, stream);
    }
    GraphHandle capture_copies(std::span<const CopySpan> spans) override { return sim_.capture_copies(spans); }
    void launch_graph(GraphHandle graph, StreamHandle stream) override { sim_.launch_graph(graph, stream); }
    void destroy_graph(GraphHandle graph) override { sim_.destroy_graph(graph); }
    GateHandle close_gate(StreamHandle stream) override {
        const GateHandle gate = sim_.close_gate(stream);
        const std::lock_guard guard(mutex_);
        closed_.insert(gate.value);
        return gate;
    }
    void open_gate(GateHandle gate) override {
        const std::lock_guard guard(mutex_);
        closed_.erase(gate.value);
        sim_.open_gate(gate);
    }

  private:
    class Inside {
      public:
        Inside(ProbeDevice& probe, DriverCall kind) {
            ++probe.calls_[static_cast<std::size_t>(kind)];
            if (probe.calls_until_refusal_ != 0 && --probe.calls_until_refusal_ == 0) {
                throw DeviceError("call refused on request");
            }
            is_in_device = true;
        }
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;
        ~Inside() { is_in_device = false; }
    };

    void set(std::function<void()>& slot, std::function<void()> to) {
        const std::lock_guard guard(mutex_);
        slot = std::move(to);
    }
    void step(std::function<void()>& slot) {
        std::function<void()> taken;
        {
            const std::lock_guard guard(mutex_);
            taken = std::exchange(slot, nullptr);
        }
        if (taken) {
            taken();
        }
    }
    bool pending(EventHandle event) {
        try {
            return !sim_.done(event);
        } catch (const DeviceError&) {
            return false;  // ended, in failure
        }
    }

    SimDevice sim_;
    std::mutex mutex_;  // guards the two steps, the gates and the batches; never held while a step runs
    std::set<std::uintptr_t> closed_;
    std::vector<Batch> batches_;
    std::function<void()> at_wait_;
    std::function<void()> at_synchronize_;
    std::atomic<std::uint64_t> launches_until_refusal_ = 0;
    std::atomic<std::uint64_t> calls_until_refusal_ = 0;
    std::array<std::atomic<std::uint64_t>, kDriverCalls> calls_{};
    std::atomic<std::uint64_t> events_shared_ = 0;
    bool kernels_ = true;
    StreamHandle newest_stream_;
};

}  // namespace kvfix
