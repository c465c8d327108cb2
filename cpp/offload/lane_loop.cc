#include "offload/lane_loop.h"

#include <stdexcept>
#include <utility>

namespace kvfix {
namespace {

constexpr std::chrono::microseconds kPoll{50};  // how late an end may be seen; asking costs a microsecond

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
    engine_ = std::make_unique<CopyEngine>(device_, config.in_flight_max);
    stream_ = device_->create_stream();
}

LaneLoop::~LaneLoop() {
    engine_.reset();
    try {
        device_->destroy_stream(stream_);
    } catch (const DeviceError&) {  // it told whoever asked about the transfer
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
            .broken = broken_};
}

void LaneLoop::run() {
    Lock lock(mutex_);
    while (true) {
        reap(lock);
        if (closing_) {
            refuse_queued("the lane was closed before the transfer began");
            if (in_flight_.empty()) {
                break;
            }
        } else if (renew_ && in_flight_.empty()) {
            renew_stream(lock);
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
    const Clock::time_point since = Clock::now();
    std::optional<TransferId> id;
    std::string error;
    try {
        const std::optional<EventHandle> after = job.after ? std::optional(job.after->event()) : std::nullopt;
        id = engine_->submit(job.spans, {.after = after, .before = {}, .source = config_.source}, stream_);
    } catch (const std::exception& failure) {
        error = failure.what();
    }
    job.after.reset();  // the stream waits for what the event was; it may be recorded again
    const std::uint64_t bytes = bytes_of(job.spans);
    lock.lock();
    submitting_.reset();
    ++submitted_;
    if (id) {
        in_flight_.push_back({job.number, *id, bytes, since});
    } else {
        end(job.number, error, bytes, since);
    }
}

// One stream, so transfers end in the order of submission.
void LaneLoop::reap(Lock& lock) {
    while (!in_flight_.empty()) {
        const InFlight oldest = in_flight_.front();
        lock.unlock();
        bool done = true;
        std::string error;
        try {
            done = engine_->done(oldest.id);
        } catch (const std::exception& failure) {
            error = failure.what();
        }
        lock.lock();
        if (!done) {
            return;
        }
        in_flight_.pop_front();
        end(oldest.number, std::move(error), oldest.bytes, oldest.since);
    }
}

void LaneLoop::renew_stream(Lock& lock) {
    lock.unlock();
    try {
        device_->destroy_stream(stream_);
    } catch (const DeviceError&) {  // what broke it was reported with the transfer
    }
    std::string error;
    try {
        stream_ = device_->create_stream();
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

void LaneLoop::end(std::uint64_t number, std::string error, std::uint64_t bytes, Clock::time_point since) {
    if (error.empty()) {
        streams_lost_ = 0;
    } else {
        ++failed_;
        first_error_ = first_error_.empty() ? error : first_error_;
        // What fails behind a failure on the same stream tells nothing new.
        streams_lost_ += renew_ ? 0 : 1;
        renew_ = true;
        if (streams_lost_ == config_.failures_max && !broken_) {
            broken_ = true;
            refuse_queued("the lane gave up after losing " + std::to_string(config_.failures_max) +
                          " streams in a row; the first error: " + first_error_);
        }
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count();
    ended_.push_back({number, std::move(error), bytes, static_cast<std::uint64_t>(ns)});
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
