// The calls of the driver that matter here (calls.def), as CUPTI reports them.
#pragma once

#include "hostrace/driver.h"
#include "hostrace/driver_api.h"
#include "hostrace/graphs.h"
#include "hostrace/host_memory.h"
#include "hostrace/kernels.h"
#include "hostrace/order.h"
#include "hostrace/ranges.h"
#include "hostrace/streams.h"
#include "hostrace/thread_end.h"
#include "hostrace/watcher.h"

namespace hostrace {

struct Calls {
    Calls(Watcher& watcher, const Driver& loaded)
        : watch(watcher),
          driver(loaded),
          ranges(watcher.ranges),
          streams(driver),
          order(driver),
          kernels(driver),
          host_memory(driver),
          graphs(driver, kernels, ranges) {}

    void on_call(std::uint32_t number, const cupti::CallbackData& data);

    Watcher& watch;
    const Driver& driver;
    Ranges& ranges;
    Streams streams;
    Order order;
    Kernels kernels;
    HostMemory host_memory;
    Graphs graphs;
    // A thread takes its own default streams along.
    ThreadEnd thread_end{[](void* calls) { static_cast<Calls*>(calls)->on_thread_end(); }};

  private:
    void on_thread_end();
};

}  // namespace hostrace
