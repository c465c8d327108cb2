#include "device/sim_stream.h"

#include <system_error>
#include <utility>

#include "device/device.h"

namespace kvfix {

SimStream::SimStream(std::uint64_t number, std::uint64_t seed) : number_(number) {
    std::seed_seq sequence{seed, seed >> 32, number};
    random_.seed(sequence);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
        throw DeviceError("stream " + std::to_string(number) + ": no thread to run it: " + error.what());
    }
}

SimStream::~SimStream() {
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void SimStream::enqueue(Operation operation) {
    const std::lock_guard guard(mutex_);
    throw_if_failed();
    queue_.push_back(std::move(operation));
    ++enqueued_;
    changed_.notify_all();
}

void SimStream::synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, target = enqueued_] { return finished_ >= target; });
    throw_if_failed();
}

void SimStream::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        {
            const Operation operation = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            lag();
            execute(operation);
        }
        lock.lock();
        ++finished_;
        changed_.notify_all();
    }
}

// Yields 1 to 32 times; every power of two is as likely as the next. On a busy machine each yield may give away a whole
// time slice.
void SimStream::lag() {
    const std::uint64_t yields = std::uint64_t{1} << (random_() % 6);
    for (std::uint64_t i = 0; i < yields; ++i) {
        std::this_thread::yield();
    }
}

void SimStream::execute(const Operation& operation) {
    std::visit([this](const auto& one) { perform(one); }, operation);
}

void SimStream::perform(const Work& work) {
    if (failure()) {
        return;
    }
    try {
        work();
    } catch (const std::exception& error) {
        fail(error.what());
    }
}

void SimStream::perform(const Signal& signal) { signal.latch->complete(failure()); }

void SimStream::perform(const Await& await) {
    // If another stream failed to deliver, its result is missing here too.
    if (const SimFailure missed = await.latch->wait()) {
        fail("waited for an event behind a failure: " + *missed);
    }
}

SimFailure SimStream::failure() const {
    const std::lock_guard guard(mutex_);
    return failure_;
}

void SimStream::fail(const std::string& why) {
    const std::lock_guard guard(mutex_);
    if (!failure_) {
        failure_ = "stream " + std::to_string(number_) + ": " + why;
    }
}

void SimStream::throw_if_failed() const {
    if (failure_) {
        throw DeviceError(*failure_);
    }
}

}  // namespace kvfix
