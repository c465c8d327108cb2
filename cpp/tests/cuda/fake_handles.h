// Objects behind the handles of the fake driver. The lock of the driver's state guards them.
#pragma once

#include <list>
#include <vector>

#include "fake_driver.h"

namespace kvfix::fake {

// Behind the waits that its stream had when it was recorded.
struct FakeEvent {
    std::vector<StreamWait> waits;
};

// The captured copies, and the graph that is made of them.
using FakeGraph = std::vector<Copied>;

// Kept until the next test, because a broken driver never gives some of them back.
struct Handles {
    std::list<FakeEvent> events;
    FakeGraph captured;
    std::list<FakeGraph> graphs;
    std::uintptr_t next = 0x1000;

    template <typename Handle>
    void make(Handle* handle) {
        *handle = reinterpret_cast<Handle>(next += 16);
    }
};

inline FakeEvent& of(cuda::Event event) { return *reinterpret_cast<FakeEvent*>(event); }
inline FakeGraph& of(cuda::Graph graph) { return *reinterpret_cast<FakeGraph*>(graph); }
inline FakeGraph& of(cuda::GraphExec graph) { return *reinterpret_cast<FakeGraph*>(graph); }
inline void* host(cuda::Address address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

}  // namespace kvfix::fake
