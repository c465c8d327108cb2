// What every stress program does: its threads play for some seconds, and another one sees that their calls return.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/types.h"

namespace kvfix::stress {

[[noreturn]] inline void fail(const std::string& why) {
    static std::mutex once;
    once.lock();  // the first thread to fail reports; the others may be in any state by now
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
    std::_Exit(1);
}

// A prompt of one of a few families, cut anywhere, so that prompts of all loops share blocks. `below(n)` draws.
template <class Below>
std::vector<TokenId> tokens_of_a_family(Below below) {
    std::vector<TokenId> tokens(1 + below(40));
    const auto family = static_cast<TokenId>(below(4));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = family * 100 + static_cast<TokenId>(i);
    }
    return tokens;
}

inline void expect(bool ok, const char* why) {
    if (!ok) {
        fail(why);
    }
}

struct Options {
    std::uint64_t seconds = 10;
    std::uint64_t threads = 4;
    std::uint64_t seed = 1;
};

inline Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        std::uint64_t* field = name == "--seconds"   ? &options.seconds
                               : name == "--threads" ? &options.threads
                               : name == "--seed"    ? &options.seed
                                                     : nullptr;
        char* end = nullptr;
        if (field != nullptr && i + 1 < argc) {
            *field = std::strtoull(argv[i + 1], &end, 10);
        }
        if (end == nullptr || *end != '\0' || end == argv[i + 1]) {
            fail(name + " is not understood; usage: [--seconds N] [--threads N] [--seed N]");
        }
    }
    if (options.threads < 1 || options.threads > 256) {
        fail("--threads is " + std::to_string(options.threads) + ": 1 to 256");
    }
    return options;
}

// Relaxed, so that these give the threads no order which only the lock of the manager should give them.
class Progress {
  public:
    bool is_over() const { return over_.load(std::memory_order_relaxed); }
    void end() { over_.store(true, std::memory_order_relaxed); }
    void count_call() { calls_.fetch_add(1, std::memory_order_relaxed); }
    std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  private:
    std::atomic<bool> over_ = false;
    std::atomic<std::uint64_t> calls_ = 0;
};

// Calls play(number) in a thread for each number, until it returns. Ends `progress` when the time is up, and fails if no
// call has returned for long.
class Threads {
  public:
    Threads(Progress& progress, std::chrono::milliseconds time) : progress_(progress), time_(time) {}

    template <class Play>
    void run(std::uint64_t count, Play play) {
        running_ = count;
        std::vector<std::thread> threads;
        for (std::uint64_t number = 0; number < count; ++number) {
            threads.emplace_back([this, number, play] {
                try {
                    play(number);
                } catch (const std::exception& error) {
                    fail(error.what());
                }
                const std::lock_guard guard(mutex_);
                --running_;
                changed_.notify_all();
            });
        }
        watch();
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

  private:
    using Clock = std::chrono::steady_clock;

    void watch() {
        constexpr std::chrono::seconds kPatience{20};
        const Clock::time_point end = Clock::now() + time_;
        std::unique_lock lock(mutex_);
        while (running_ != 0) {
            const std::uint64_t before = running_;
            const std::uint64_t calls = progress_.calls();
            const Clock::time_point until =
                progress_.is_over() ? Clock::now() + kPatience : std::min(end, Clock::now() + kPatience);
            changed_.wait_until(lock, until, [&] { return running_ != before; });
            const bool moved = progress_.calls() != calls || running_ != before;
            expect(moved || until == end, "no call has returned for twenty seconds");
            if (Clock::now() >= end) {
                progress_.end();
            }
        }
    }

    Progress& progress_;
    const std::chrono::milliseconds time_;
    std::mutex mutex_;  // guards running_
    std::condition_variable changed_;
    std::uint64_t running_ = 0;
};

}  // namespace kvfix::stress
