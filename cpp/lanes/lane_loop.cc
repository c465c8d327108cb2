#include "lanes/lane_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvfix {
namespace {

constexpr std::chrono::microseconds kPoll{25};  // how late an end may be seen; asking costs a microsecond
constexpr unsigned long kTimerSlackNs = 1000;   // by default the kernel makes 50 us more of any such wait
constexpr std::size_t kStreamsMax = 16;
// The device begins when the driver has taken the first call, so that one is short. Each next one is twice as long: the
// device copies a block for longer than the driver needs to take one, so it never waits for a call.
constexpr std::size_t kFirstPart = 32;
constexpr std::size_t kLargestPart = 512;
constexpr std::size_t kPartsMax = 8;  // of 2,048 blocks; with more in flight the thread waits for the oldest

std::uint64_t bytes_of(const std::vector<CopySpan>& spans) {
    std::uint64_t bytes = 0;
    for (const CopySpan& span : spans) {
        bytes += span.bytes;
    }
    return bytes;
}

}  // namespace

LaneLoop::LaneLoop(std::shared_ptr<Device> device, const LaneConfig& config)
    : device_(std::move(device)), config_(config) {
    if (config.queue_max == 0 || config.in_flight_max == 0 || config.failures_max == 0) {
        throw std::invalid_argument("TransferLane: queue_max, in_flight_max and failures_max are at least 1");
    }
    if (config.streams == 0 || config.streams > kStreamsMax) {
        throw std::invalid_argument("TransferLane: streams is " + std::to_string(config.streams) + "; 1 to " +
                                    std::to_string(kStreamsMax));
    }
    streams_ = std::make_unique<CopyStreams>(device_, config.streams);
    make_kernel_copies();
    engine_ = std::make_unique<CopyEngine>(device_, config.in_flight_max * kPartsMax);
}

void LaneLoop::make_kernel_copies() {
    if (config_.kernel_sms != 0) {
        kernel_ = std::make_unique<KernelCopies>(device_, config_.kernel_sms, config_.in_flight_max);
    }
}

LaneAnswer LaneLoop::enqueue(std::uint64_t job, std::vector<CopySpan> spans, MarkPtr after) {
    const std::lock_guard guard(mutex_);
    if (closing_) {
        return LaneAnswer::closed;
    }
    if (broken_) {
        return LaneAnswer::broken;
    }
    if (queued_ == config_.queue_max) {
        return LaneAnswer::full;
    }
    if (find(job) != nullptr) {
        throw std::invalid_argument("job " + std::to_string(job) + " is here already");
    }
    const std::uint64_t bytes = bytes_of(spans);
    transfers_.push_back({.job = job,
                          .state = TransferState::queued,
                          .spans = std::move(spans),
                          .after = std::move(after),
                          .bytes = bytes,
                          .parts = {},
                          .error = {},
                          .since = {},
                          .ns = 0});
    ++queued_;
    wake_.notify_one();
    return LaneAnswer::taken;
}

std::vector<EndedTransfer> LaneLoop::take_ended() {
    const std::lock_guard guard(mutex_);
    std::vector<EndedTransfer> ended;
    while (!transfers_.empty() && transfers_.front().state == TransferState::ended_here) {
        Transfer& first = transfers_.front();
        ended.push_back({first.job, std::move(first.error), first.bytes, first.ns});
        transfers_.pop_front();
    }
    return ended;
}

std::optional<TransferState> LaneLoop::state(std::uint64_t job) const {
    const std::lock_guard guard(mutex_);
    const Transfer* const found = find(job);
    return found == nullptr ? std::nullopt : std::optional(found->state);
}

bool LaneLoop::wait(std::uint64_t job, std::chrono::milliseconds limit) {
    Lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return !is_under_way(job); });
}

bool LaneLoop::stop(std::chrono::milliseconds limit) {
    Lock lock(mutex_);
    closing_ = true;
    wake_.notify_one();
    return changed_.wait_for(lock, limit, [&] { return stopped_; });
}

LaneStats LaneLoop::stats() const {
    const std::lock_guard guard(mutex_);
    return {.queued = queued_,
            .in_flight = in_flight_,
            .submitted = submitted_,
            .failed = failed_,
            .first_error = first_error_,
            .broken = broken_,
            .by_kernel = by_kernel_};
}

void LaneLoop::run() {
    ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
    Lock lock(mutex_);
    while (true) {
        reap(lock);
        if (closing_) {
            refuse_queued("the lane was closed before the transfer began");
            if (in_flight_ == 0) {
                break;
            }
        } else if (renew_ && in_flight_ == 0) {
            renew_streams(lock);
            continue;
        } else if (queued_ != 0 && !renew_ && in_flight_ < config_.in_flight_max) {
            submit_next(lock);
            continue;
        }
        if (in_flight_ == 0) {
            wake_.wait(lock, [this] { return closing_ || queued_ != 0; });
        } else {
            wake_.wait_for(lock, kPoll);
        }
    }
    stopped_ = true;
    changed_.notify_all();
}

void LaneLoop::submit_next(Lock& lock) {
    Transfer& transfer = oldest(TransferState::queued);  // and stays so: only this thread changes a state
    lock.unlock();
    transfer.since = Clock::now();
    const bool by_kernel = kernel_ != nullptr && KernelCopies::takes(transfer.spans);
    try {
        by_kernel ? submit_to_kernel(transfer) : submit_to_dma(transfer);
    } catch (const std::exception& failure) {
        transfer.error = failure.what();
    }
    transfer.after.reset();  // the streams wait for what the event was; it may be recorded again
    lock.lock();
    ++submitted_;
    by_kernel_ += by_kernel ? 1 : 0;
    --queued_;
    ++in_flight_;
    transfer.state = TransferState::in_flight;
    if (transfer.parts.empty()) {
        end(transfer);
    }
}

CopyOrder LaneLoop::order_of(const Transfer& transfer) const {
    const std::optional<EventHandle> after = transfer.after ? std::optional(transfer.after->event()) : std::nullopt;
    return {.after = after, .before = {}, .source = config_.source};
}

void LaneLoop::submit_to_kernel(Transfer& transfer) {
    const StreamHandle stream = (*streams_)[0];
    const auto copies = [&] { kernel_->enqueue(transfer.spans, stream); };
    transfer.parts.push_back(engine_->submit(copies, order_of(transfer), stream));
}

// The streams take the parts in turn, and every stream that has one waits for the mark.
void LaneLoop::submit_to_dma(Transfer& transfer) {
    const bool small = transfer.bytes < transfer.spans.size() * config_.shared_bytes_min;
    std::span<const CopySpan> left = transfer.spans;
    std::size_t size = small ? left.size() : kFirstPart;
    do {
        const std::span<const CopySpan> part = left.first(std::min(size, left.size()));
        const StreamHandle stream = (*streams_)[transfer.parts.size() % streams_->count()];
        transfer.parts.push_back(engine_->submit(part, order_of(transfer), stream));
        left = left.subspan(part.size());
        size = std::min(2 * size, kLargestPart);
    } while (!left.empty());
}

// Transfers are reported in the order in which they were taken: one that overtakes others on its streams waits for them here.
void LaneLoop::reap(Lock& lock) {
    while (in_flight_ != 0) {
        Transfer& transfer = oldest(TransferState::in_flight);
        lock.unlock();
        const bool ended = all_ended(transfer);
        lock.lock();
        if (!ended) {
            return;
        }
        end(transfer);
    }
}

// Forgets the parts that have ended, and keeps the first error.
bool LaneLoop::all_ended(Transfer& transfer) {
    while (!transfer.parts.empty()) {
        try {
            if (!engine_->done(transfer.parts.back())) {
                return false;
            }
        } catch (const std::exception& failure) {
            transfer.error = transfer.error.empty() ? failure.what() : transfer.error;
        }
        transfer.parts.pop_back();
    }
    return true;
}

void LaneLoop::renew_streams(Lock& lock) {
    lock.unlock();
    std::string error;
    try {
        kernel_.reset();  // before the streams that its slots were lent to
        streams_->renew();
        make_kernel_copies();
    } catch (const DeviceError& failure) {
        error = failure.what();
    }
    lock.lock();
    renew_ = false;
    if (!error.empty()) {
        broken_ = true;
        refuse_queued(error);
    }
}

// Ends a transfer that was in flight.
void LaneLoop::end(Transfer& transfer) {
    --in_flight_;
    transfer.ns = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - transfer.since).count());
    finish(transfer);
    if (transfer.error.empty()) {
        streams_lost_ = 0;
        return;
    }
    first_error_ = first_error_.empty() ? transfer.error : first_error_;
    // A failure behind a failure on the same streams means nothing new.
    streams_lost_ += renew_ ? 0 : 1;
    renew_ = true;
    if (streams_lost_ == config_.failures_max && !broken_) {
        broken_ = true;
        refuse_queued("the lane gave up after losing " + std::to_string(config_.failures_max) +
                      " streams in a row; the first error: " + first_error_);
    }
}

void LaneLoop::finish(Transfer& transfer) {
    transfer.state = TransferState::ended_here;
    transfer.spans = {};  // it may lie here for a while
    transfer.after.reset();
    failed_ += transfer.error.empty() ? 0 : 1;
    changed_.notify_all();
}

void LaneLoop::refuse_queued(const std::string& why) {
    for (; queued_ != 0; --queued_) {
        Transfer& transfer = oldest(TransferState::queued);
        transfer.error = why;
        finish(transfer);
    }
}

// There is one.
LaneLoop::Transfer& LaneLoop::oldest(TransferState state) {
    return *std::ranges::find(transfers_, state, &Transfer::state);
}

const LaneLoop::Transfer* LaneLoop::find(std::uint64_t job) const {
    const auto found = std::ranges::find(transfers_, job, &Transfer::job);
    return found == transfers_.end() ? nullptr : &*found;
}

bool LaneLoop::is_under_way(std::uint64_t job) const {
    const Transfer* const found = find(job);
    return found != nullptr && found->state != TransferState::ended_here;
}

}  // namespace kvfix
