// A child of the process that opened a device ends its parent's objects without reaching the device.
#include "device/home_device.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"

namespace kvfix {
namespace {

// Zero if the child did what it should. It is killed if it hangs.
int status_of_child(const std::function<bool()>& child_does) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(child_does() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

bool refuses(const std::function<void()>& call) {
    try {
        call();
    } catch (const DeviceError& error) {
        return std::string(error.what()).find("made in a parent") != std::string::npos;
    }
    return false;
}

struct Things {
    explicit Things(Device& device)
        : stream(device.create_stream()),
          event(device.create_event()),
          pinned(device.map_pinned(64)),
          memory(device.allocate(64)),
          gate(device.close_gate(stream)) {
        const std::array<CopySpan, 1> spans{CopySpan{memory, reinterpret_cast<std::uintptr_t>(pinned), 64}};
        graph = device.capture_copies(spans);
        device.launch_graph(graph, stream);
        device.record(event, stream);
    }
    void give_back(Device& device) const {
        device.open_gate(gate);
        device.destroy_graph(graph);
        device.destroy_event(event);
        device.destroy_stream(stream);
        device.release(memory);
        device.unmap_pinned(pinned, 64);
    }

    StreamHandle stream;
    EventHandle event;
    void* pinned;
    std::uintptr_t memory;
    GateHandle gate;
    GraphHandle graph{};
};

TEST(HomeDevice, GivesBackNothingInAChildAndRefusesTheRest) {
    auto device = open_device("cpu", 1);
    const Things things(*device);
    const auto in_child = [&] {
        const std::vector<std::function<void()>> calls{
            [&] { device->create_stream(); },
            [&] { device->create_event(); },
            [&] { device->record(things.event, things.stream); },
            [&] { static_cast<void>(device->done(things.event)); },
            [&] { device->wait(things.event); },
            [&] { device->synchronize(things.stream); },
            [&] { device->make_wait(things.stream, things.event); },
            [&] { device->map_pinned(64); },
            [&] { device->allocate(64); },
            [&] { device->copy({things.memory, reinterpret_cast<std::uintptr_t>(things.pinned), 64}, things.stream); },
            [&] { device->launch_graph(things.graph, things.stream); },
            [&] { device->close_gate(things.stream); },
        };
        const bool all_refused = std::all_of(calls.begin(), calls.end(), refuses);
        things.give_back(*device);
        device.reset();  // its streams are threads of the parent
        return all_refused && open_device("cpu", 2)->create_event().value != 0;
    };
    EXPECT_EQ(status_of_child(in_child), 0);
    EXPECT_FALSE(device->done(things.event));
    things.give_back(*device);
}

// Locks are as the fork finds them: here another thread has one nearly all the time.
TEST(HomeDevice, AChildEndsItsParentsEventsWhileThreadsOfItsParentUseTheDevice) {
    const auto device = open_device("cpu", 1);
    std::vector<EventHandle> events;
    for (int number = 0; number < 8; ++number) {
        events.push_back(device->create_event());
    }
    std::atomic<bool> over = false;
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
        threads.emplace_back([&] {
            while (!over) {
                device->destroy_event(device->create_event());
            }
        });
    }
    for (int number = 0; number < 100; ++number) {
        EXPECT_EQ(status_of_child([&] {
                      for (const EventHandle event : events) {
                          device->destroy_event(event);
                      }
                      return true;
                  }),
                  0);
    }
    over = true;
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace
}  // namespace kvfix
