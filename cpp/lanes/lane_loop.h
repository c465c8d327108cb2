// The loop of a lane's thread, and the books that it shares with the callers. The thread holds a share of this, so that
// a lane may be let go while the device still uses its memory. transfer_lane.h describes the lane.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "lanes/copy_streams.h"
#include "lanes/kernel_copies.h"
#include "lanes/marks.h"
#include "staging/copy_engine.h"

namespace kvfix {

struct LaneConfig {
    std::size_t queue_max = 256;     // transfers waiting to be submitted
    std::size_t in_flight_max = 32;  // submitted, not ended
    std::uint32_t failures_max = 3;  // streams lost in a row
    SourceOrder source = SourceOrder::stream;
    std::size_t streams = 4;  // that share the blocks of a transfer
    // Smaller blocks keep to one stream: the driver takes several times as long for loads of them from more than one.
    std::size_t shared_bytes_min = 32 << 10;
    std::uint32_t kernel_sms = 0;  // multiprocessors for copies by kernel; 0: by DMA
};

// The state of a transfer, in the words of trtllm_kvfix/offload/ledger.py, which has the states before and after these.
//
//   queued --> in flight --> ended here
//      `-- the lane closes, breaks --^
enum class TransferState : std::uint8_t { queued, in_flight, ended_here };

// A lane's answer when it is asked to take a transfer. It keeps something of the transfer only for `taken`.
enum class LaneAnswer : std::uint8_t { taken, full, broken, closed };

struct EndedTransfer {
    std::uint64_t job;
    std::string error;  // empty: every byte has arrived
    std::uint64_t bytes;
    std::uint64_t ns;  // from submission until its end was seen
};

struct LaneStats {
    std::size_t queued;
    std::size_t in_flight;
    std::uint64_t submitted;
    std::uint64_t failed;
    std::string first_error;
    bool broken;
    std::uint64_t by_kernel;  // part of those submitted
};

class LaneLoop {
  public:
    LaneLoop(std::shared_ptr<Device> device, const LaneConfig& config);
    LaneLoop(const LaneLoop&) = delete;
    LaneLoop& operator=(const LaneLoop&) = delete;

    void run();  // the thread

    LaneAnswer enqueue(std::uint64_t job, std::vector<CopySpan> spans, MarkPtr after);
    std::vector<EndedTransfer> take_ended();
    std::optional<TransferState> state(std::uint64_t job) const;
    bool wait(std::uint64_t job, std::chrono::milliseconds limit);
    bool stop(std::chrono::milliseconds limit);
    LaneStats stats() const;

  private:
    using Clock = std::chrono::steady_clock;
    using Lock = std::unique_lock<std::mutex>;
    // The mutex guards job and state, and all of it once it has ended; until then the rest is the thread's alone.
    struct Transfer {
        std::uint64_t job;
        TransferState state;
        std::vector<CopySpan> spans;
        MarkPtr after;
        std::uint64_t bytes;
        std::vector<TransferId> parts;  // one on each stream that has a share
        std::string error;              // the first: what had been submitted is waited for
        Clock::time_point since;        // of the submission
        std::uint64_t ns;
    };

    void submit_next(Lock& lock);
    void submit_to_kernel(Transfer& transfer);
    void submit_to_dma(Transfer& transfer);
    CopyOrder order_of(const Transfer& transfer) const;
    void reap(Lock& lock);
    bool all_ended(Transfer& transfer);
    void renew_streams(Lock& lock);
    void make_kernel_copies();
    void end(Transfer& transfer);
    void finish(Transfer& transfer);
    void refuse_queued(const std::string& why);
    Transfer& oldest(TransferState state);
    const Transfer* find(std::uint64_t job) const;
    bool is_under_way(std::uint64_t job) const;

    const std::shared_ptr<Device> device_;
    const LaneConfig config_;
    // The thread's alone; kept for good where the device does not end what it was given.
    std::unique_ptr<CopyStreams> streams_;  // outlives what waits for its work
    std::unique_ptr<KernelCopies> kernel_;  // null: by DMA
    std::unique_ptr<CopyEngine> engine_;

    mutable std::mutex mutex_;         // guards what follows; not held while the device is called
    std::condition_variable wake_;     // for the thread
    std::condition_variable changed_;  // for who waits for an end
    // In the order in which they were taken. A deque, since the thread uses one while others come behind it, and those before
    // it go.
    std::deque<Transfer> transfers_;
    std::size_t queued_ = 0;
    std::size_t in_flight_ = 0;
    std::uint64_t submitted_ = 0;
    std::uint64_t by_kernel_ = 0;
    std::uint64_t failed_ = 0;
    std::uint32_t streams_lost_ = 0;  // since the last transfer that arrived
    std::string first_error_;
    bool renew_ = false;  // a stream has broken
    bool broken_ = false;
    bool closing_ = false;
    bool stopped_ = false;
};

}  // namespace kvfix
