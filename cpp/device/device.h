// A GPU, or something that behaves like one. There are two implementations: cuda_device.cc, the only file that knows
// CUDA, and sim_device.cc, which runs streams as threads. Everything above uses this interface alone.
//
// A call that takes a stream returns at once, and reads its source when it executes. Host memory that such a call gets
// belongs to the device until an event recorded behind it is done. Handles are plain numbers, so streams may come from
// outside (a torch stream's handle). Any thread may call any method, in the process that opened the device. Errors are
// DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>

#include "kernels/calls.h"

namespace kvfix {

class DeviceError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// CUstream as a number, or a stream of the simulated device. 0 is the default stream.
struct StreamHandle {
    std::uintptr_t value = 0;
    bool operator==(const StreamHandle&) const = default;
};
struct EventHandle {
    std::uintptr_t value = 0;
};
struct GateHandle {
    std::uintptr_t value = 0;
};
struct GraphHandle {
    std::uintptr_t value = 0;
};

// When the sources of a batched copy may be read: only in stream order, or at any time from the call on.
enum class SourceOrder : std::uint8_t { stream, any };

struct CopySpan {
    std::uintptr_t dst;
    std::uintptr_t src;
    std::size_t bytes;
};

// rows of row_bytes each; pitches in bytes.
struct RowCopy {
    std::uintptr_t dst;
    std::size_t dst_pitch;
    std::uintptr_t src;
    std::size_t src_pitch;
    std::size_t row_bytes;
    std::size_t rows;
};

using KernelCall = std::variant<ExpandRows, GatherHostRows, GatherDeviceRows, CopyBlocks, DigestBlocks, FillWords>;

// Held by shared_ptr: memory and events keep their device alive.
class Device : public std::enable_shared_from_this<Device> {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    virtual ~Device() = default;

    virtual std::string name() const = 0;
    virtual bool simulated() const = 0;
    // False if no kernels were built in, or none runs on this GPU. launch() then throws.
    virtual bool has_kernels() const = 0;
    virtual std::uint32_t multiprocessors() const = 0;
    // True if copy_batch() is one driver call that honours the source order; otherwise it is a loop in stream order.
    virtual bool has_batched_copy() const = 0;

    virtual StreamHandle create_stream() = 0;
    virtual void destroy_stream(StreamHandle stream) = 0;  // waits for it
    virtual void synchronize(StreamHandle stream) = 0;

    virtual EventHandle create_event() = 0;
    virtual void destroy_event(EventHandle event) = 0;
    // Binds the event to everything enqueued on the stream so far. The owner ensures that only one use is in flight at
    // a time.
    virtual void record(EventHandle event, StreamHandle stream) = 0;
    virtual bool done(EventHandle event) = 0;  // true when never recorded
    virtual void wait(EventHandle event) = 0;  // blocks this thread
    // How many of these waits have begun, in all threads.
    virtual std::uint64_t event_waits() const { return 0; }
    virtual void make_wait(StreamHandle stream, EventHandle event) = 0;

    // Pinned memory, zeroed. Whole pages are mapped and pinned, but the size is not rounded up further.
    virtual void* map_pinned(std::size_t bytes) = 0;
    virtual void unmap_pinned(void* memory, std::size_t bytes) = 0;
    // Pins memory that the caller owns.
    virtual void register_host(void* memory, std::size_t bytes) = 0;
    virtual void unregister_host(void* memory) = 0;
    // The address under which kernels find pinned memory.
    virtual std::uintptr_t device_address(void* pinned) = 0;
    virtual std::uintptr_t allocate(std::size_t bytes) = 0;
    virtual void release(std::uintptr_t address) = 0;

    // Runs work whose calls into the driver are not ours, such as torch's when it pins memory. As for every call of
    // ours, the thread stays out of other threads' captures meanwhile.
    virtual void outside_captures(const std::function<void()>& work) { work(); }

    // Copies in any direction between pinned and device memory.
    virtual void copy(const CopySpan& span, StreamHandle stream) = 0;
    virtual void copy_rows(const RowCopy& rows, StreamHandle stream) = 0;
    virtual void copy_batch(std::span<const CopySpan> spans, SourceOrder order, StreamHandle stream) = 0;
    virtual void launch(const KernelCall& call, StreamHandle stream) = 0;

    // Captures these copies, in this order, to be launched often. Each launch reads the sources anew when it executes,
    // so they belong to the device until an event behind the last launch is done. Only one thread at a time may use a
    // graph.
    virtual GraphHandle capture_copies(std::span<const CopySpan> spans) = 0;
    virtual void launch_graph(GraphHandle graph, StreamHandle stream) = 0;
    virtual void destroy_graph(GraphHandle graph) = 0;  // pending launches still run

    // Holds everything that is enqueued on the stream from now on, until the gate is opened, without any timing. On a
    // GPU these calls wait for a held stream: unmapping and unregistering pinned memory, release(), copies from pinned
    // to pinned memory, opening and closing a device. A held stream takes about 3,000 operations; then the caller that
    // enqueues waits too.
    virtual GateHandle close_gate(StreamHandle stream) = 0;
    virtual void open_gate(GateHandle gate) = 0;  // also frees the gate, once the stream has passed
};

// "cuda" or "cuda:N" need a driver. Throws a DeviceError that says what is missing.
std::unique_ptr<Device> open_cuda_device(int ordinal);
// Streams run later, by amounts drawn from the seed.
std::unique_ptr<Device> open_sim_device(std::uint64_t seed);
// "cpu" (simulated), "cuda", "cuda:N", or "auto": the first GPU if there is one, else "cpu". A process that forks has it;
// its children do not (home_device.h).
std::shared_ptr<Device> open_device(const std::string& name, std::uint64_t seed);

}  // namespace kvfix
