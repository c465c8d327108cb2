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

class Calls {
  public:
    Calls(Watcher& watch, const Driver& driver)
        : watch_(watch), streams_(driver), kernels_(driver), graphs_(driver, kernels_, ranges_) {}

    template <typename F>
    static void for_each_number(F call) {
#define CALL(name, number, when, handler, per_thread) call(std::uint32_t{number});
#include "watch/calls.def"
#undef CALL
    }
    void on_call(std::uint32_t number, const cupti::CallbackData& data);

  private:
    struct Call {
        const void* arguments;
        const void* context;
        bool per_thread;
    };
    struct Entry {
        int site = -1;
        bool per_thread = false;
        void (Calls::*handler)(const Call&) = nullptr;
    };
    static constexpr std::size_t kNumbersEnd = 1024;
    using Table = std::array<Entry, kNumbersEnd>;
    static constexpr Table table();

    void host_alloc(const Call& call);
    void host_register(const Call& call);
    void host_free(const Call& call);
    void host_unregister(const Call& call);
    void synchronized(const Call& call);
    void stream_destroy(const Call& call);
    void context_destroy(const Call& call);
    void contexts_reset(const Call& call);
    void unload(const Call& call);

    void copy(const Call& call);
    void copy_from_array(const Call& call);
    void copy_to_array(const Call& call);
    template <typename Copy>
    void copy_shaped(const Call& call);
    template <typename Batch>
    void copy_batch(const Call& call);
    template <typename Batch>
    void copy_batch_3d(const Call& call);
    template <typename Value>
    void memset(const Call& call);
    template <typename Value>
    void memset_2d(const Call& call);

    void launch(const Call& call);
    void launch_cooperative(const Call& call);
    void launch_extended(const Call& call);
    void launched(const Call& call, cuda::Handle function, cuda::Handle stream, void** params, void** extra);

    void graph_instantiate(const Call& call);
    void graph_launch(const Call& call);
    void graph_destroy(const Call& call);
    void graph_update(const Call& call);
    template <typename Params>
    void set_node(const Call& call);
    void set_child(const Call& call);
    void set_any_node(const Call& call);

    void give_back(std::uintptr_t begin, const char* how);
    Enqueued enqueued(const Call& call, cuda::Handle stream);

    Watcher& watch_;
    Ranges ranges_;
    Streams streams_;
    Kernels kernels_;
    Graphs graphs_;
};

}  // namespace kvfix::watch
