// A device in the process that opened it, and in that process's children.
//
// A child has its parent's objects in memory, and ends some of them before it runs a line of its own: those of threads
// that fork() did not copy. Neither a driver nor the streams of a simulated device work there, and their locks are as
// the fork found them. So in a child nothing reaches the device: what gives something back does nothing, since it
// belongs to the parent, and every other call throws a DeviceError.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "process/home_process.h"

namespace kvfix {

class HomeDevice final : public Device {
  public:
    explicit HomeDevice(std::unique_ptr<Device> device);
    ~HomeDevice() override;

    std::string name() const override { return name_; }
    bool simulated() const override { return device_->simulated(); }
    bool has_kernels() const override { return device_->has_kernels(); }
    std::uint32_t multiprocessors() const override { return device_->multiprocessors(); }
    bool has_batched_copy() const override { return device_->has_batched_copy(); }

    StreamHandle create_stream() override { return here().create_stream(); }
    void synchronize(StreamHandle stream) override { here().synchronize(stream); }
    EventHandle create_event() override { return here().create_event(); }
    void record(EventHandle event, StreamHandle stream) override { here().record(event, stream); }
    bool done(EventHandle event) override { return here().done(event); }
    void wait(EventHandle event) override {
        ++event_waits_;
        here().wait(event);
    }
    std::uint64_t event_waits() const override { return event_waits_; }
    void make_wait(StreamHandle stream, EventHandle event) override { here().make_wait(stream, event); }
    void* map_pinned(std::size_t bytes) override { return here().map_pinned(bytes); }
    void register_host(void* memory, std::size_t bytes) override { here().register_host(memory, bytes); }
    std::uintptr_t device_address(void* pinned) override { return here().device_address(pinned); }
    std::uintptr_t allocate(std::size_t bytes) override { return here().allocate(bytes); }
    void outside_captures(const std::function<void()>& work) override { here().outside_captures(work); }
    void copy(const CopySpan& span, StreamHandle stream) override { here().copy(span, stream); }
    void copy_rows(const RowCopy& rows, StreamHandle stream) override { here().copy_rows(rows, stream); }
    void copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) override {
        here().copy_batch(spans, order, stream);
    }
    void launch(const KernelCall& call, StreamHandle stream) override { here().launch(call, stream); }
    GraphHandle capture_copies(std::span<const CopySpan> spans) override { return here().capture_copies(spans); }
    void launch_graph(GraphHandle graph, StreamHandle stream) override { here().launch_graph(graph, stream); }
    GateHandle close_gate(StreamHandle stream) override { return here().close_gate(stream); }

    void destroy_stream(StreamHandle stream) override;
    void destroy_event(EventHandle event) override;
    void unmap_pinned(void* memory, std::size_t bytes) override;
    void unregister_host(void* memory) override;
    void release(std::uintptr_t address) override;
    void destroy_graph(GraphHandle graph) override;
    void open_gate(GateHandle gate) override;

    // The device itself. Throws a DeviceError in a child.
    Device& here() const;

  private:
    const HomeProcess home_;
    const std::string name_;  // a child shows it in errors
    std::unique_ptr<Device> device_;
    std::atomic<std::uint64_t> event_waits_ = 0;
};

}  // namespace kvfix
