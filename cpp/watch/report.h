// What was seen, on disk as soon as it was seen: each race once in a text that is appended to, and numbers in a file that
// is mapped, so that they outlive the process however it ends.
#pragma once

#include <array>
#include <cstdint>

#include "watch/guard.h"
#include "watch/owned_lock.h"
#include "watch/stacks.h"

namespace kvfix::watch {

struct Race {
    const Verdict& verdict;
    Access access;
    const char* how;  // the call that touches, null for an instruction
    const void* instruction;
    void* const* frames;
};

// A use and a touch that were seen together: where in the program each of them is.
using Pair = std::uint32_t;

inline constexpr std::size_t kPairsMax = 1024;

// The layout of the mapped file, which trtllm_kvfix/watch/races.py reads.
struct Numbers {
    std::uint64_t format;
    std::uint64_t pid;
    std::uint64_t guarded, faults_stale, steps, dropped;
    std::uint64_t unwatched_streams;  // uses on a stream that took no flag
    std::uint64_t trimmed;            // kernels' ranges that were cut to the limit
    std::uint64_t pairs_lost;         // races that found no room
    std::uint64_t gave_up;
    std::uint64_t times[kPairsMax];
};

class Report {
  public:
    Report(const char* folder, GuardCounts& counts, const Stacks& stacks) : counts_(counts), stacks_(stacks) {
        open(folder);
    }

    Pair say(const Race& race);
    // A line about what could not be watched.
    void note(const char* text, const char* detail = "");
    bool gave_up(Pair pair) const { return given_up_[pair].load(std::memory_order_relaxed); }
    void give_up(Pair pair);
    void update();
    void close_in_child();
    bool open_for_writing() const { return file_ >= 0; }
    Numbers& numbers() { return *numbers_; }

  private:
    void open(const char* folder);
    void write_race(Pair pair, const Race& race);

    GuardCounts& counts_;
    const Stacks& stacks_;
    OwnedLock lock_;
    int file_ = -1;
    std::uint64_t started_ns_ = 0;
    Numbers spare_{};  // where the file cannot be mapped
    Numbers* numbers_ = &spare_;
    std::array<std::uint64_t, kPairsMax> places_{};
    std::size_t pairs_ = 0;
    std::array<std::atomic<bool>, kPairsMax> given_up_{};
    std::array<char, std::size_t{1} << 16> buffer_{};
};

}  // namespace kvfix::watch
