// What a lane's thread runs, and the books it shares with the callers. The thread holds a share of this, so that a lane may be let go
// while the device still uses what it was given. transfer_lane.h tells what it does.
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

struct EndedTransfer {
    std::uint64_t number;
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
    std::uint64_t by_kernel;  // of those submitted
};

class LaneLoop {
  public:
    LaneLoop(std::shared_ptr<Device> device, const LaneConfig& config);
    LaneLoop(const LaneLoop&) = delete;
    LaneLoop& operator=(const LaneLoop&) = delete;

    void run();  // the thread

    std::optional<std::uint64_t> enqueue(std::vector<CopySpan> spans, MarkPtr after);
    std::vector<EndedTransfer> take_ended();
    bool wait(std::uint64_t number, std::chrono::milliseconds limit);
    bool stop(std::chrono::milliseconds limit);
    LaneStats stats() const;

  private:
    using Clock = std::chrono::steady_clock;
    using Lock = std::unique_lock<std::mutex>;
    struct Queued {
        std::uint64_t number;
        std::vector<CopySpan> spans;
        MarkPtr after;
    };
    struct InFlight {
        std::uint64_t number;
        std::vector<TransferId> parts;  // one on each stream that has a share
        std::string error;              // of the submission: what had been submitted is waited for
        std::uint64_t bytes;
        Clock::time_point since;
    };

    void submit_next(Lock& lock);
    void submit_to_kernel(const Queued& job, InFlight& transfer);
    void submit_to_dma(const Queued& job, InFlight& transfer);
    CopyOrder order_of(const Queued& job) const;
    void reap(Lock& lock);
    bool all_ended(InFlight& transfer);
    void renew_streams(Lock& lock);
    void make_kernel_copies();
    void end(const InFlight& transfer);
    void refuse_queued(const std::string& why);
    std::uint64_t first_pending() const;

    const std::shared_ptr<Device> device_;
    const LaneConfig config_;
    // The thread's alone; kept for good where the device does not end what it was given.
    std::unique_ptr<CopyStreams> streams_;  // outlives what waits for its work
    std::unique_ptr<KernelCopies> kernel_;  // null: by DMA
    std::unique_ptr<CopyEngine> engine_;

    mutable std::mutex mutex_;         // guards what follows; not held while the device is called
    std::condition_variable wake_;     // for the thread
    std::condition_variable changed_;  // for who waits for an end
    std::uint64_t next_number_ = 1;
    std::deque<Queued> queue_;
    std::optional<std::uint64_t> submitting_;
    std::deque<InFlight> in_flight_;
    std::vector<EndedTransfer> ended_;
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
