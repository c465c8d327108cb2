// stress_block_manager --seconds N --threads N --seed N
//
// Runs schedulers, copy engines and remote readers at once on one small manager. Exit status 0 means that nothing was
// wrong. With 1, a message says what was. Death by a signal means that the manager crashed. The program must fail if it
// is built with KVFIX_NO_LOCK.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/stress_arena.h"
#include "tests/stress_player.h"

namespace kvfix::stress {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::uint64_t seconds = 10;
    std::uint64_t threads = 4;
    std::uint64_t seed = 1;
};

Options parse(int argc, char** argv) {
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
            fail(name + " is not understood; usage: stress_block_manager [--seconds N] [--threads N] [--seed N]");
        }
    }
    if (options.threads < 1 || options.threads > 256) {
        fail("--threads is " + std::to_string(options.threads) + ": 1 to 256");
    }
    return options;
}

class Stress {
  public:
    explicit Stress(const Options& options) : options_(options), running_(options.threads) {}

    void run() {
        std::vector<std::thread> threads;
        for (std::uint64_t number = 0; number < options_.threads; ++number) {
            threads.emplace_back([this, number] { play(number); });
        }
        watch();
        for (std::thread& thread : threads) {
            thread.join();
        }
        expect_nothing_lost();
        report();
    }

  private:
    void play(std::uint64_t number) {
        try {
            Player(arena_, options_.seed, number).run();
        } catch (const std::exception& error) {
            fail(error.what());
        }
        const std::lock_guard guard(mutex_);
        --running_;
        changed_.notify_all();
    }

    // Stops the players when their time is up. Fails if none of their calls has returned for long.
    void watch() {
        constexpr std::chrono::seconds kPatience{20};
        const Clock::time_point end = Clock::now() + std::chrono::seconds(options_.seconds);
        std::unique_lock lock(mutex_);
        while (running_ != 0) {
            const std::uint64_t calls = arena_.calls;
            const Clock::time_point until =
                arena_.stop ? Clock::now() + kPatience : std::min(end, Clock::now() + kPatience);
            changed_.wait_until(lock, until, [this] { return running_ == 0; });
            const bool moved = arena_.calls != calls || running_ != options_.threads;
            expect(moved || until == end, "no call has returned for twenty seconds");
            arena_.stop = Clock::now() >= end;
        }
    }

    void expect_nothing_lost() {
        BlockManager& manager = arena_.manager;
        manager.check_invariants();
        manager.complete(manager.take_transfers().ticket);
        manager.reset_reuse_state();
        manager.check_invariants();
        for (const WindowStats& window : manager.get_kv_cache_stats().windows) {
            expect(window.primary.free == window.primary.blocks && window.host.free == window.host.blocks,
                   "a slot is lost for good");
        }
    }

    void report() const {
        const CacheCounters total = arena_.manager.get_kv_cache_stats().total;
        const auto text = [](std::uint64_t number) { return std::to_string(number); };
        const std::string line = text(arena_.calls) + " calls of " + text(options_.threads) + " threads, seed " +
                                 text(options_.seed) + ": nothing wrong (" + text(total.requests) + " requests, " +
                                 text(total.blocks_reused) + " blocks reused, " + text(total.blocks_offloaded) +
                                 " offloaded, " + text(total.blocks_onboarded) + " onboarded, " +
                                 text(total.blocks_copied) + " copied, " + text(total.blocks_failed) + " failed)";
        std::puts(("stress_block_manager: " + line).c_str());
    }

    const Options options_;
    Arena arena_;
    std::mutex mutex_;  // guards running_
    std::condition_variable changed_;
    std::uint64_t running_;
};

}  // namespace
}  // namespace kvfix::stress

int main(int argc, char** argv) {
    kvfix::stress::Stress(kvfix::stress::parse(argc, argv)).run();
    return 0;
}
