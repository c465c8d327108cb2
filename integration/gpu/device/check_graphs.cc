// Graphs of copies: when they read, and that a launch is held, awaited and outlived like any other work.
#include "checks.h"

namespace kvfix {
namespace {

// Two words from pinned memory to the device, by one copy each.
class Captured {
  public:
    explicit Captured(const std::shared_ptr<Device>& device)
        : source_(device, kBytes), there_(device, kBytes), back_(device, kBytes), device_(*device) {
        const CopySpan spans[] = {{there_.address(), source_.address(), kBytes / 2},
                                  {there_.address() + kBytes / 2, source_.address() + kBytes / 2, kBytes / 2}};
        graph_ = device_.capture_copies(spans);
    }

    void write(int value) { words()[0] = words()[1] = value; }
    void launch(StreamHandle stream) { device_.launch_graph(graph_, stream); }
    void destroy() { device_.destroy_graph(graph_); }
    // What the device has after everything on the stream; -1 if its words differ.
    int seen(StreamHandle stream) {
        device_.copy({back_.address(), there_.address(), kBytes}, stream);
        device_.synchronize(stream);
        const int* found = static_cast<const int*>(back_.data());
        return found[0] == found[1] ? found[0] : -1;
    }

  private:
    static constexpr std::size_t kBytes = 2 * sizeof(int);
    int* words() { return static_cast<int*>(source_.data()); }

    PinnedMemory source_;
    DeviceMemory there_;
    PinnedMemory back_;
    Device& device_;
    GraphHandle graph_;
};

void check_reads(Checks& checks, StreamHandle stream) {
    Captured captured(checks.device);
    for (const int value : {1, 2, 3}) {
        captured.write(value);
        captured.launch(stream);
        checks.expect(captured.seen(stream) == value, "each launch of a graph reads its sources anew");
    }
    captured.destroy();
}

// The first launch of a graph may have to upload it to the device, so one runs before the stream is held.
void check_held(Checks& checks, StreamHandle stream) {
    Captured captured(checks.device);
    captured.launch(stream);
    checks.device->synchronize(stream);
    captured.write(1);
    const GateHandle gate = checks.device->close_gate(stream);
    captured.launch(stream);
    captured.write(2);
    captured.destroy();
    checks.device->open_gate(gate);
    checks.expect(captured.seen(stream) == 2, "a held launch reads when it runs, although its graph was destroyed");
}

void check_awaited(Checks& checks, StreamHandle stream) {
    Captured captured(checks.device);
    const EventHandle event = checks.device->create_event();
    for (int value = 1; value <= 1000; ++value) {
        captured.write(value);
        captured.launch(stream);
        checks.device->record(event, stream);
        checks.device->wait(event);
        captured.write(-value);
        if (captured.seen(stream) != value) {
            checks.expect(false, "who waits for an event behind a launch may write what the graph reads");
            break;
        }
    }
    checks.expect(checks.device->done(event), "an event behind the launch of a graph is done once it was awaited");
    checks.device->destroy_event(event);
    captured.destroy();
}

void check_captured_beside_a_held_stream(Checks& checks, StreamHandle stream) {
    const OwnStream other(checks.device);
    const GateHandle gate = checks.device->close_gate(other.handle);
    checks.step("a graph is captured while another stream is held");
    Captured captured(checks.device);
    checks.device->open_gate(gate);
    captured.write(7);
    captured.launch(stream);
    checks.expect(captured.seen(stream) == 7, "a graph may be captured while another stream is held");
    captured.destroy();
}

}  // namespace

void check_graphs(Checks& checks) {
    const OwnStream stream(checks.device);
    check_reads(checks, stream.handle);
    check_held(checks, stream.handle);
    check_awaited(checks, stream.handle);
    check_captured_beside_a_held_stream(checks, stream.handle);
}

}  // namespace kvfix
