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
// A share of fewer blocks is not worth a call of its own.
constexpr std::size_t kSpansPerPart = 16;

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
    engine_ = std::make_unique<CopyEngine>(device_, config.in_flight_max * config.streams);
}

void LaneLoop::make_kernel_copies() {
    if (config_.kernel_sms != 0) {
        kernel_ = std::make_unique<KernelCopies>(device_, config_.kernel_sms, config_.in_flight_max);
    }
}

std::optional<std::uint64_t> LaneLoop::enqueue(std::vector<CopySpan> spans, MarkPtr after) {
    const std::lock_guard guard(mutex_);
    if (closing_ || broken_ || queue_.size() == config_.queue_max) {
        return std::nullopt;
    }
    queue_.push_back({next_number_, std::move(spans), std::move(after)});
    wake_.notify_one();
    return next_number_++;
}

std::vector<EndedTransfer> LaneLoop::take_ended() {
    const std::lock_guard guard(mutex_);
    return std::exchange(ended_, {});
}

bool LaneLoop::wait(std::uint64_t number, std::chrono::milliseconds limit) {
    Lock lock(mutex_);
    if (number == 0 || number >= next_number_) {
        throw std::invalid_argument("transfer " + std::to_string(number) + " was never enqueued");
    }
    return changed_.wait_for(lock, limit, [&] { return number < first_pending(); });
}

bool LaneLoop::stop(std::chrono::milliseconds limit) {
    Lock lock(mutex_);
    closing_ = true;
    wake_.notify_one();
    return changed_.wait_for(lock, limit, [&] { return stopped_; });
}

LaneStats LaneLoop::stats() const {
    const std::lock_guard guard(mutex_);
    return {.queued = queue_.size() + (submitting_ ? 1 : 0),
            .in_flight = in_flight_.size(),
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
            if (in_flight_.empty()) {
                break;
            }
        } else if (renew_ && in_flight_.empty()) {
            renew_streams(lock);
            continue;
        } else if (!queue_.empty() && !renew_ && in_flight_.size() < config_.in_flight_max) {
            submit_next(lock);
            continue;
        }
        if (in_flight_.empty()) {
            wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        } else {
            wake_.wait_for(lock, kPoll);
        }
    }
    stopped_ = true;
    changed_.notify_all();
}

void LaneLoop::submit_next(Lock& lock) {
    Queued job = std::move(queue_.front());
    queue_.pop_front();
    submitting_ = job.number;
    lock.unlock();
    InFlight transfer{
        .number = job.number, .parts = {}, .error = {}, .bytes = bytes_of(job.spans), .since = Clock::now()};
    const bool by_kernel = kernel_ != nullptr && KernelCopies::takes(job.spans);
    try {
        by_kernel ? submit_to_kernel(job, transfer) : submit_to_dma(job, transfer);
    } catch (const std::exception& failure) {
        transfer.error = failure.what();
    }
    job.after.reset();  // the streams wait for what the event was; it may be recorded again
    lock.lock();
    submitting_.reset();
    ++submitted_;
    by_kernel_ += by_kernel ? 1 : 0;
    if (transfer.parts.empty()) {
        end(transfer);
    } else {
        in_flight_.push_back(std::move(transfer));
    }
}

CopyOrder LaneLoop::order_of(const Queued& job) const {
    const std::optional<EventHandle> after = job.after ? std::optional(job.after->event()) : std::nullopt;
    return {.after = after, .before = {}, .source = config_.source};
}

void LaneLoop::submit_to_kernel(const Queued& job, InFlight& transfer) {
    const StreamHandle stream = (*streams_)[0];
    const auto copies = [&] { kernel_->enqueue(job.spans, stream); };
    transfer.parts.push_back(engine_->submit(copies, order_of(job), stream));
}

// Every stream that has a share waits for the mark.
void LaneLoop::submit_to_dma(const Queued& job, InFlight& transfer) {
    const bool small = transfer.bytes < job.spans.size() * config_.shared_bytes_min;
    const std::size_t parts =
        small ? 1 : std::clamp<std::size_t>(job.spans.size() / kSpansPerPart, 1, streams_->count());
    std::span<const CopySpan> left = job.spans;
    for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t share = left.size() / (parts - part);
        transfer.parts.push_back(engine_->submit(left.first(share), order_of(job), (*streams_)[part]));
        left = left.subspan(share);
    }
}

// Transfers are reported in the order of their numbers: one that overtakes others on its streams waits for them here.
void LaneLoop::reap(Lock& lock) {
    while (!in_flight_.empty()) {
        InFlight& oldest = in_flight_.front();  // only this thread changes what is in flight
        lock.unlock();
        const bool ended = all_ended(oldest);
        lock.lock();
        if (!ended) {
            return;
        }
        const InFlight transfer = std::move(oldest);
        in_flight_.pop_front();
        end(transfer);
    }
}

// Forgets the parts that have ended, and keeps the first error.
bool LaneLoop::all_ended(InFlight& transfer) {
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

void LaneLoop::end(const InFlight& transfer) {
    const std::string& error = transfer.error;
    if (error.empty()) {
        streams_lost_ = 0;
    } else {
        ++failed_;
        first_error_ = first_error_.empty() ? error : first_error_;
        // What fails behind a failure on the same streams tells nothing new.
        streams_lost_ += renew_ ? 0 : 1;
        renew_ = true;
        if (streams_lost_ == config_.failures_max && !broken_) {
            broken_ = true;
            refuse_queued("the lane gave up after losing " + std::to_string(config_.failures_max) +
                          " streams in a row; the first error: " + first_error_);
        }
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - transfer.since).count();
    ended_.push_back({transfer.number, error, transfer.bytes, static_cast<std::uint64_t>(ns)});
    changed_.notify_all();
}

void LaneLoop::refuse_queued(const std::string& why) {
    for (const Queued& job : queue_) {
        ++failed_;
        ended_.push_back({job.number, why, bytes_of(job.spans), 0});
    }
    queue_.clear();
    changed_.notify_all();
}

// Everything before this number has ended: transfers are taken, submitted and ended in the order of their numbers. A refusal
// may overtake what is in flight, which is why that is looked at first.
std::uint64_t LaneLoop::first_pending() const {
    if (!in_flight_.empty()) {
        return in_flight_.front().number;
    }
    if (submitting_) {
        return *submitting_;
    }
    return queue_.empty() ? next_number_ : queue_.front().number;
}

}  // namespace kvfix
