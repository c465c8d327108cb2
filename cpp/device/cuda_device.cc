// A GPU behind the interface of device.h. This file only translates; the cuda_* files each do one part of the work.
#include <bit>
#include <functional>

#include "device/cuda_copies.h"
#include "device/cuda_gates.h"
#include "device/cuda_graphs.h"
#include "device/cuda_kernels.h"
#include "device/cuda_memory.h"

namespace kvfix {
namespace {

cuda::Stream of(StreamHandle stream) { return std::bit_cast<cuda::Stream>(stream.value); }
cuda::Event of(EventHandle event) { return std::bit_cast<cuda::Event>(event.value); }
cuda::GraphExec of(GraphHandle graph) { return std::bit_cast<cuda::GraphExec>(graph.value); }
StreamHandle handle_of(cuda::Stream stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }
EventHandle handle_of(cuda::Event event) { return {reinterpret_cast<std::uintptr_t>(event)}; }

// Streams, events and memory that are not destroyed stay, because a use may be pending; the driver frees them with the
// context. While a gate holds a stream, giving memory back (unmap_pinned, unregister_host, release) and closing a
// device wait for that stream. Taking memory, streams and events does not.
class CudaDevice final : public Device {
  public:
    explicit CudaDevice(int ordinal)
        : driver_(cuda::driver()),
          context_(driver_, ordinal),
          name_(context_.name()),
          copies_(context_),
          maps_(context_),
          kernels_(context_),
          gates_(context_, maps_) {}

    std::string name() const override { return name_; }
    bool simulated() const override { return false; }
    bool has_kernels() const override { return kernels_.loaded(); }
    std::uint32_t multiprocessors() const override { return context_.multiprocessors(); }
    bool has_batched_copy() const override { return copies_.has_batch(); }

    StreamHandle create_stream() override {
        const auto current = context_.use();
        cuda::Stream stream = nullptr;
        driver_.stream_create(&stream, cuda::kStreamNonBlocking);
        return handle_of(stream);
    }
    void destroy_stream(StreamHandle stream) override {
        const auto current = context_.use();
        driver_.stream_synchronize(of(stream));
        driver_.stream_destroy(of(stream));
    }
    void synchronize(StreamHandle stream) override {
        const auto current = context_.use();
        driver_.stream_synchronize(of(stream));
    }

    EventHandle create_event() override {
        const auto current = context_.use();
        cuda::Event event = nullptr;
        driver_.event_create(&event, cuda::kEventDisableTiming);
        return handle_of(event);
    }
    void destroy_event(EventHandle event) override {
        const auto current = context_.use();
        driver_.event_destroy(of(event));
    }
    void record(EventHandle event, StreamHandle stream) override {
        const auto current = context_.use();
        driver_.event_record(of(event), of(stream));
    }
    bool done(EventHandle event) override {
        const auto current = context_.use();
        const cuda::Result answer = driver_.event_query.result(of(event));
        // During a capture the driver may refuse to look, which says nothing about the event. Other errors come from
        // the work before it, or from the device.
        const bool unknown = answer == cuda::kErrorNotReady || answer == cuda::kErrorCaptureUnsupported;
        if (answer != cuda::kSuccess && !unknown) {
            driver_.event_query.fail(answer, of(event));
        }
        return answer == cuda::kSuccess;
    }
    void wait(EventHandle event) override {
        const auto current = context_.use();
        driver_.event_synchronize(of(event));
    }
    void make_wait(StreamHandle stream, EventHandle event) override {
        const auto current = context_.use();
        driver_.stream_wait_event(of(stream), of(event), 0);
    }

    void* map_pinned(std::size_t bytes) override { return maps_.map(bytes); }
    void unmap_pinned(void* memory, std::size_t bytes) override { maps_.unmap(memory, bytes); }
    void register_host(void* memory, std::size_t bytes) override { cuda::register_host(context_, memory, bytes); }
    void unregister_host(void* memory) override {
        const auto current = context_.use();
        driver_.host_unregister(memory);
    }
    std::uintptr_t device_address(void* pinned) override { return cuda::device_address(context_, pinned); }
    std::uintptr_t allocate(std::size_t bytes) override {
        const auto current = context_.use();
        cuda::Address address = 0;
        driver_.allocate(&address, bytes);
        return address;
    }
    void release(std::uintptr_t address) override {
        const auto current = context_.use();
        driver_.free(address);
    }

    void outside_captures(const std::function<void()>& work) override {
        const auto current = context_.use();
        work();
    }

    void copy(const CopySpan& span, StreamHandle stream) override { copies_.one(span, of(stream)); }
    void copy_rows(const RowCopy& rows, StreamHandle stream) override { copies_.rows(rows, of(stream)); }
    void copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) override {
        copies_.batch(spans, order, of(stream));
    }
    void launch(const KernelCall& call, StreamHandle stream) override { kernels_.launch(call, of(stream)); }

    GraphHandle capture_copies(std::span<const CopySpan> spans) override {
        return {reinterpret_cast<std::uintptr_t>(cuda::capture_copies(context_, spans))};
    }
    void launch_graph(GraphHandle graph, StreamHandle stream) override {
        const auto current = context_.use();
        driver_.graph_launch(of(graph), of(stream));
    }
    void destroy_graph(GraphHandle graph) override {
        const auto current = context_.use();
        driver_.graph_exec_destroy(of(graph));
    }

    GateHandle close_gate(StreamHandle stream) override { return gates_.close(of(stream)); }
    void open_gate(GateHandle gate) override { gates_.open(gate); }

  private:
    const cuda::Driver& driver_;
    cuda::PrimaryContext context_;  // the others use it: constructed first, destroyed last
    std::string name_;
    cuda::Copies copies_;
    cuda::PinnedMaps maps_;
    cuda::Kernels kernels_;
    cuda::GatePool gates_;  // destroyed first, which opens them: unloading kernels may wait for a held stream
};

}  // namespace

std::unique_ptr<Device> open_cuda_device(int ordinal) { return std::make_unique<CudaDevice>(ordinal); }

}  // namespace kvfix
