// Streams that are threads, which a test can hold, and which reach memory past its protection.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Address = unsigned long long;
constexpr int kSuccess = 0;

// The device's own way to memory.
void device_write(Address to, const void* from, std::size_t bytes) {
    static const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    syscall(SYS_pwrite64, memory, from, bytes, static_cast<off_t>(to));
}
void device_read(Address from, void* to, std::size_t bytes) {
    static const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    syscall(SYS_pread64, memory, to, bytes, static_cast<off_t>(from));
}
void device_copy(Address to, Address from, std::size_t bytes) {
    std::vector<char> part(bytes);
    device_read(from, part.data(), bytes);
    device_write(to, part.data(), bytes);
}

class Stream {
  public:
    Stream() : worker_([this] { run(); }) { worker_.detach(); }
    void add(std::function<void()> work) {
        const std::lock_guard held(mutex_);
        queue_.push_back(std::move(work));
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock held(mutex_);
        changed_.wait(held, [&] { return queue_.empty() && !busy_; });
    }
    void hold() {
        add([this] {
            std::unique_lock held(mutex_);
            changed_.wait(held, [&] { return opened_ > 0; });
            --opened_;
        });
    }
    void open() {
        const std::lock_guard held(mutex_);
        ++opened_;
        changed_.notify_all();
    }
    bool idle() {
        const std::lock_guard held(mutex_);
        return queue_.empty() && !busy_;
    }
    bool capturing = false;
    bool blocking = true;

  private:
    void run() {
        std::unique_lock held(mutex_);
        for (;;) {
            changed_.wait(held, [&] { return !queue_.empty(); });
            const auto work = std::move(queue_.front());
            queue_.pop_front();
            busy_ = true;
            held.unlock();
            work();
            held.lock();
            busy_ = false;
            changed_.notify_all();
        }
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool busy_ = false;
    int opened_ = 0;
    std::thread worker_;
};

auto* streams = new std::map<void*, std::unique_ptr<Stream>>;  // outlives the threads
std::mutex streams_mutex;

// The legacy default stream has two handles: nothing, and 1.
Stream& stream_of(void* handle) {
    if (handle == reinterpret_cast<void*>(1)) {
        handle = nullptr;
    }
    const std::lock_guard held(streams_mutex);
    auto& stream = (*streams)[handle];
    if (stream == nullptr) {
        stream = std::make_unique<Stream>();
    }
    return *stream;
}

void for_each_stream(const std::function<void(Stream&)>& call) {
    const std::lock_guard held(streams_mutex);
    for (auto& [handle, stream] : *streams) {
        call(*stream);
    }
}

int enqueue(void* handle, std::function<void()> work) {
    Stream& stream = stream_of(handle);
    if (!stream.capturing) {  // what is captured does not run
        stream.add(std::move(work));
    }
    return kSuccess;
}

}  // namespace
