// stress_block_manager --seconds N --threads N --seed N
//
// Runs schedulers, copy engines and remote readers at once on one small manager. Exit status 0 means that nothing was
// wrong. With 1, a message says what was. Death by a signal means that the manager crashed. The program must fail if it
// is built with KVFIX_NO_LOCK.
#include <chrono>
#include <cstdio>
#include <string>

#include "tests/stress_arena.h"
#include "tests/stress_player.h"

namespace kvfix::stress {
namespace {

class Stress {
  public:
    explicit Stress(const Options& options) : options_(options) {}

    void run() {
        Threads(arena_.progress, std::chrono::seconds(options_.seconds))
            .run(options_.threads, [this](std::uint64_t number) { Player(arena_, options_.seed, number).run(); });
        expect_nothing_lost();
        report();
    }

  private:
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
        const std::string line = text(arena_.progress.calls()) + " calls of " + text(options_.threads) +
                                 " threads, seed " + text(options_.seed) + ": nothing wrong (" + text(total.requests) +
                                 " requests, " + text(total.blocks_reused) + " blocks reused, " +
                                 text(total.blocks_offloaded) + " offloaded, " + text(total.blocks_onboarded) +
                                 " onboarded, " + text(total.blocks_copied) + " copied, " + text(total.blocks_failed) +
                                 " failed)";
        std::puts(("stress_block_manager: " + line).c_str());
    }

    const Options options_;
    Arena arena_;
};

}  // namespace
}  // namespace kvfix::stress

int main(int argc, char** argv) {
    kvfix::stress::Stress(kvfix::stress::parse(argc, argv)).run();
    return 0;
}
