// The calls of the driver that matter here, as CUPTI reports them: before they begin and when they have returned.
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
        : watch_(watch), driver_(driver), streams_(driver), kernels_(driver), graphs_(driver, kernels_, ranges_) {}

    // The numbers of the calls to be told about.
    static const std::uint32_t* wanted(std::size_t* count);
    void on_call(std::uint32_t id, const cupti::CallbackData& data);

  private:
    void before(std::uint32_t id, const cupti::CallbackData& data);
    void after(std::uint32_t id, const cupti::CallbackData& data);
    bool memory(std::uint32_t id, const void* arguments);
    bool copy(std::uint32_t id, const cupti::CallbackData& data);
    bool memset(std::uint32_t id, const cupti::CallbackData& data);
    bool launch(std::uint32_t id, const cupti::CallbackData& data);
    bool graph(std::uint32_t id, const cupti::CallbackData& data);
    void copy_batch(const cuda::args::CopyBatch& batch, Enqueued& enqueued) const;
    void copy_sides(const Shape& src, const Shape& dst, int order, Enqueued& enqueued) const;
    void give_back(std::uintptr_t begin, const char* how);
    Enqueued enqueued(const cupti::CallbackData& data, cuda::Handle stream, bool per_thread);

    Watcher& watch_;
    const Driver& driver_;
    Ranges ranges_;
    Streams streams_;
    Kernels kernels_;
    Graphs graphs_;
};

}  // namespace kvfix::watch
