// A device that does nothing, at no cost, so that ship() costs only the stager's own work on the CPU.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "device/device.h"

namespace kvfix::bench {

class NullDevice final : public Device {
  public:
    std::string name() const override { return "null"; }
    bool simulated() const override { return true; }
    bool has_kernels() const override { return true; }
    std::uint32_t multiprocessors() const override { return 1; }
    bool has_batched_copy() const override { return true; }
    StreamHandle create_stream() override { return {1}; }
    void destroy_stream(StreamHandle) override {}
    void synchronize(StreamHandle) override {}
    EventHandle create_event() override { return {1}; }
    void destroy_event(EventHandle) override {}
    void record(EventHandle, StreamHandle) override {}
    bool done(EventHandle) override { return true; }
    void wait(EventHandle) override {}
    void make_wait(StreamHandle, EventHandle) override {}
    void* map_pinned(std::size_t bytes) override {
        void* const memory = std::calloc(1, bytes);
        return memory != nullptr ? memory : throw std::bad_alloc();
    }
    void unmap_pinned(void* memory, std::size_t) override { std::free(memory); }
    void register_host(void*, std::size_t) override {}
    void unregister_host(void*) override {}
    std::uintptr_t device_address(void* pinned) override { return reinterpret_cast<std::uintptr_t>(pinned); }
    std::uintptr_t allocate(std::size_t) override { return kNoMemory; }
    void release(std::uintptr_t) override {}
    void copy(const CopySpan&, StreamHandle) override {}
    void copy_rows(const RowCopy&, StreamHandle) override {}
    void copy_batch(std::span<const CopySpan>, SourceOrder, StreamHandle) override {}
    void launch(const KernelCall&, StreamHandle) override {}
    GraphHandle capture_copies(std::span<const CopySpan>) override { return {1}; }
    void launch_graph(GraphHandle, StreamHandle) override {}
    void destroy_graph(GraphHandle) override {}
    GateHandle close_gate(StreamHandle) override { return {1}; }
    void open_gate(GateHandle) override {}

  private:
    static constexpr std::uintptr_t kNoMemory = 64;  // never touched: nothing runs
};

}  // namespace kvfix::bench
