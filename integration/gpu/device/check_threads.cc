// Every method from many threads at once, some of them without a context of their own.
#include <atomic>
#include <barrier>
#include <thread>

#include "checks.h"
#include "device/cuda_driver.h"

namespace kvfix {
namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 100;
constexpr std::size_t kWords = 4096;

// One thread's work: fill on the device, copy back and compare, now and then with a gate. Memory is taken and given
// back while nobody holds a stream. Otherwise the driver may wait for that stream, with locks that its holder needs.
bool work(const std::shared_ptr<Device>& device, unsigned thread, std::barrier<>& everybody) {
    const OwnStream stream(device);
    const EventHandle event = device->create_event();
    const DeviceMemory memory(device, kWords * sizeof(unsigned));
    const PinnedMemory pinned(device, memory.bytes());
    bool right = true;
    everybody.arrive_and_wait();
    for (unsigned round = 0; round < kRounds; ++round) {
        const unsigned value = thread * 1000 + round;
        const bool gated = round % 7 == thread % 7;
        const GateHandle gate = gated ? device->close_gate(stream.handle) : GateHandle{};
        device->launch(FillWords{reinterpret_cast<std::uint32_t*>(memory.address()), kWords, value}, stream.handle);
        device->copy({pinned.address(), memory.address(), pinned.bytes()}, stream.handle);
        device->record(event, stream.handle);
        if (gated) {
            right = right && !device->done(event);
            device->open_gate(gate);
        }
        device->wait(event);
        const auto* words = static_cast<const unsigned*>(pinned.data());
        right = right && words[0] == value && words[kWords / 2] == value && words[kWords - 1] == value;
    }
    everybody.arrive_and_wait();
    device->destroy_event(event);
    return right;
}

bool has_context() {
    cuda::Context current = nullptr;
    cuda::driver().get_current(&current);
    return current != nullptr;
}

}  // namespace

void check_threads(Checks& checks) {
    std::atomic<int> right = 0;
    std::atomic<int> left_a_context = 0;
    std::barrier everybody(kThreads);
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
            right += work(checks.device, thread, everybody) ? 1 : 0;
            left_a_context += has_context() ? 1 : 0;
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    checks.expect(right == kThreads, std::to_string(right) + " of " + std::to_string(kThreads) + " threads were right");
    checks.expect(left_a_context == 0, "a thread without a context has none afterwards");
}

}  // namespace kvfix
