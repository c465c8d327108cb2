// Gates and events. Nothing here depends on how long anything takes: work behind a closed gate is pending.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "checks.h"

namespace kvfix {
namespace {

// Opens the gate if the call does not return by itself.
class Watchdog {
  public:
    Watchdog(Device& device, GateHandle gate)
        : thread_([this, &device, gate] {
              std::unique_lock lock(mutex_);
              fired_ = !returned_.wait_for(lock, std::chrono::seconds(1), [this] { return called_off_; });
              device.open_gate(gate);
          }) {}
    // Whether the gate had to be opened for the call to return.
    bool call_off() {
        {
            const std::lock_guard lock(mutex_);
            called_off_ = true;
        }
        returned_.notify_all();
        thread_.join();
        return fired_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable returned_;
    bool called_off_ = false;
    bool fired_ = false;
    std::thread thread_;  // last: it uses the others
};

// Runs on the device, because the driver copies between two pinned buffers at once and waits for the stream first.
struct HeldCopy {
    explicit HeldCopy(const std::shared_ptr<Device>& device)
        : source(device, 64), over(device, 64), target(device, 64), event(device->create_event()), device_(*device) {}
    ~HeldCopy() { device_.destroy_event(event); }

    void enqueue(StreamHandle stream) {
        device_.copy({over.address(), source.address(), 64}, stream);
        device_.copy({target.address(), over.address(), 64}, stream);
        device_.record(event, stream);
    }
    int& source_word() { return *static_cast<int*>(source.data()); }
    int target_word() const { return *static_cast<int*>(target.data()); }

    PinnedMemory source;
    DeviceMemory over;
    PinnedMemory target;
    EventHandle event;

  private:
    Device& device_;
};

void check_held_copy(Checks& checks, StreamHandle stream, const std::string& where) {
    checks.step("a held copy, " + where);
    Device& device = *checks.device;
    HeldCopy copy(checks.device);
    checks.expect(device.done(copy.event), "an event that was never recorded is done");
    copy.source_word() = 1;
    const GateHandle gate = device.close_gate(stream);
    copy.enqueue(stream);
    checks.expect(!device.done(copy.event), "a copy behind a closed gate is pending, " + where);
    copy.source_word() = 2;
    checks.expect(copy.target_word() == 0, "nothing arrives through a closed gate, " + where);
    device.open_gate(gate);
    device.wait(copy.event);
    checks.expect(device.done(copy.event), "an event that was waited for is done, " + where);
    checks.expect(copy.target_word() == 2, "a copy reads its source when it executes, " + where);
    checks.expect_error("opened twice", [&] { device.open_gate(gate); });
}

void check_streams_wait(Checks& checks, StreamHandle first, StreamHandle second) {
    checks.step("two streams");
    Device& device = *checks.device;
    HeldCopy before(checks.device);
    HeldCopy after(checks.device);
    HeldCopy apart(checks.device);
    const GateHandle gate = device.close_gate(first);
    before.enqueue(first);
    apart.enqueue(second);
    device.wait(apart.event);  // returns: the gate holds one stream only
    device.make_wait(second, before.event);
    after.enqueue(second);
    checks.expect(!device.done(after.event), "a stream that waits for an event behind a gate is held too");
    device.open_gate(gate);
    device.synchronize(second);
    checks.expect(device.done(before.event) && device.done(after.event), "the order of two streams is kept");
}

void check_all_gates(Checks& checks) {
    checks.step("all gates at once");
    Device& device = *checks.device;
    const OwnStream stream(checks.device);
    for (int round = 0; round < 3; ++round) {
        std::vector<GateHandle> gates;
        for (int i = 0; i < 64; ++i) {
            gates.push_back(device.close_gate(stream.handle));
        }
        if (round == 0) {
            checks.expect_error("all 64 gates are closed", [&] { device.close_gate(stream.handle); });
        }
        for (const GateHandle gate : gates) {
            device.open_gate(gate);
        }
        device.synchronize(stream.handle);
    }
    checks.expect(true, "gates serve again once passed");
}

void check_closing_a_device(Checks& checks, StreamHandle stream) {
    checks.step("a device that goes");
    HeldCopy copy(checks.device);
    auto other = open_cuda_device(0);
    other->close_gate(stream);
    copy.enqueue(stream);
    checks.expect(!checks.device->done(copy.event), "a gate of another device object holds the stream");
    other.reset();
    checks.device->wait(copy.event);
    checks.expect(checks.device->done(copy.event), "a device that goes opens its gates");
}

// Prints, for the comments in our code, which calls wait for a held stream.
void report_waiting_calls(Checks& checks, StreamHandle stream) {
    Device& device = *checks.device;
    void* memory = nullptr;
    std::uintptr_t address = 0;
    std::vector<std::byte> pageable(1 << 20);
    const PinnedMemory one(checks.device, 64);
    const PinnedMemory other(checks.device, 64);
    const struct {
        const char* name;
        std::function<void()> call;
    } calls[] = {
        {"a copy on it between pinned buffers", [&] { device.copy({one.address(), other.address(), 64}, stream); }},
        {"create_event", [&] { device.destroy_event(device.create_event()); }},
        {"create_stream and destroy_stream", [&] { device.destroy_stream(device.create_stream()); }},
        {"map_pinned", [&] { memory = device.map_pinned(1 << 20); }},
        {"unmap_pinned", [&] { device.unmap_pinned(memory, 1 << 20); }},
        {"register_host", [&] { device.register_host(pageable.data(), pageable.size()); }},
        {"unregister_host", [&] { device.unregister_host(pageable.data()); }},
        {"allocate", [&] { address = device.allocate(std::size_t{64} << 20); }},
        {"release", [&] { device.release(address); }},
        {"open_cuda_device and closing it", [&] { open_cuda_device(0); }},
    };
    for (const auto& each : calls) {
        Watchdog watchdog(device, device.close_gate(stream));
        each.call();
        const char* outcome = watchdog.call_off() ? " waits for it" : " goes through";
        checks.step(std::string("while a stream is held, ") + each.name + outcome);
        device.synchronize(stream);
    }
}

// Prints how many operations a held stream takes before it blocks its caller.
void report_queue_depth(Checks& checks, StreamHandle stream) {
    Device& device = *checks.device;
    HeldCopy copy(checks.device);
    Watchdog watchdog(device, device.close_gate(stream));
    int taken = 0;
    for (; taken < 5000; ++taken) {
        const auto begin = std::chrono::steady_clock::now();
        copy.enqueue(stream);
        if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(500)) {
            break;
        }
    }
    const bool blocked = watchdog.call_off();
    checks.step("a held stream took " + std::to_string(2 * taken) + " copies and " + std::to_string(taken) + " events" +
                (blocked ? ", then held the caller" : ""));
    device.synchronize(stream);
}

}  // namespace

void check_gates(Checks& checks) {
    const OwnStream first(checks.device);
    const OwnStream second(checks.device);
    check_held_copy(checks, first.handle, "on a stream of ours");
    check_held_copy(checks, {0}, "on the default stream");
    check_streams_wait(checks, first.handle, second.handle);
    check_streams_wait(checks, {0}, second.handle);  // ours do not synchronize with the default stream
    check_all_gates(checks);
    check_closing_a_device(checks, first.handle);
    report_waiting_calls(checks, first.handle);
    report_queue_depth(checks, first.handle);
}

}  // namespace kvfix
