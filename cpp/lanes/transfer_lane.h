// Transfers of one direction: a bounded queue, a thread that submits them to copy streams of its own, and their results. A lane
// for stores and one for loads share nothing, so neither waits behind the other. Blocks go by DMA, shared among the streams, or
// by a kernel, if the lane was set up so and the blocks suit it; nothing orders two transfers but their ends.
//
// Each transfer waits on the device for its mark. That is the edge to the stream that computes: it was set behind the kernels
// that write the blocks of a store, or behind the last users of the blocks that a load fills. The readers of loaded blocks come
// later, once the caller has seen the transfer end.
//
// The thread touches nothing of Python. A failure ends its transfer and is reported with it; the streams are replaced, since an error
// breaks one for good. After losing `failures_max` streams in a row the lane gives up, and refuses.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lanes/lane_loop.h"
#include "process/home_process.h"

namespace kvfix {

class TransferLane {
  public:
    TransferLane(std::shared_ptr<Device> device, const LaneConfig& config);
    TransferLane(const TransferLane&) = delete;
    TransferLane& operator=(const TransferLane&) = delete;
    ~TransferLane();  // closes, within a second; in a child of its process, where there is no thread, it does nothing

    // Never blocks. If the transfer is taken, the memory of its spans belongs to the device until it has ended; if not, the lane
    // has kept nothing. `job` is the caller's number of it. Throws std::invalid_argument where the lane has that one.
    LaneAnswer enqueue(std::uint64_t job, std::vector<CopySpan> spans, MarkPtr after) {
        return loop().enqueue(job, std::move(spans), std::move(after));
    }
    // Each transfer once, in the order in which they were taken.
    std::vector<EndedTransfer> take_ended() { return loop().take_ended(); }
    // Empty where it was never taken, or its end has been.
    std::optional<TransferState> state(std::uint64_t job) const { return loop().state(job); }
    // Blocks while the job is queued or in flight here; false after the limit.
    bool wait(std::uint64_t job, std::chrono::milliseconds limit) { return loop().wait(job, limit); }
    // Transfers that have not begun end with an error; the lane waits for those that have. False: the device did not end them
    // within the limit, and memory that it was given must be kept. The thread then goes on alone. Any threads may call it, at
    // the same time too.
    bool close(std::chrono::milliseconds limit);
    LaneStats stats() const { return loop().stats(); }

  private:
    LaneLoop& loop() const {
        home_.check("this TransferLane");
        return *loop_;
    }

    const HomeProcess home_;
    std::shared_ptr<LaneLoop> loop_;
    std::mutex joining_;  // guards the thread while it is joined: one call may do that
    std::thread thread_;
};

}  // namespace kvfix
