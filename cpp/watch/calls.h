// The calls of the driver that matter here (calls.def), as CUPTI reports them.
#pragma once

#include "watch/driver.h"
#include "watch/driver_api.h"
#include "watch/graphs.h"
#include "watch/kernels.h"
#include "watch/ranges.h"
#include "watch/streams.h"
#include "watch/watcher.h"

namespace kvfix::watch {

struct Calls {
    Calls(Watcher& watcher, const Driver& driver)
        : watch(watcher), streams(driver), kernels(driver), graphs(driver, kernels, ranges) {}

    template <typename F>
    static void for_each_number(F call) {
#define CALL(name, number, when, handler, per_thread) call(std::uint32_t{number});
#include "watch/calls.def"
#undef CALL
    }
    void on_call(std::uint32_t number, const cupti::CallbackData& data);

    Watcher& watch;
    Ranges ranges;
    Streams streams;
    Kernels kernels;
    Graphs graphs;
};

}  // namespace kvfix::watch
