#include "device/sim_stream.h"

#include <atomic>
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

// Spins for 1 to 32 turns; every power of two is as likely as the next. The longest lag yields as well, so that the CPU
// runs ahead on one core and on a busy machine, too. Each turn does not: there a yield gives away a whole time slice.
void SimStream::lag() {
    constexpr std::uint64_t kSpinsOfATurn = 1'000;  // about as long as a yield to nobody
    constexpr std::uint64_t kLongest = 5;
    const std::uint64_t length = random_() % (kLongest + 1);
    if (length == kLongest) {
        std::this_thread::yield();
    }
    for (std::uint64_t i = 0; i < kSpinsOfATurn << length; ++i) {
        std::atomic_signal_fence(std::memory_order_seq_cst);  // so that the compiler keeps the loop
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
