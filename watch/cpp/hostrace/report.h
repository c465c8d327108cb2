// What was seen, on disk as soon as it was seen: each race once as a line of JSON, and a count of it.
#pragma once

#include <array>
#include <cstdint>

#include "hostrace/counts.h"
#include "hostrace/guard.h"
#include "hostrace/owned_lock.h"
#include "hostrace/stacks.h"

namespace hostrace {

struct Race {
    const Verdict& verdict;
    Access access;
    const char* how;  // the call that touches, null for an instruction
    const void* instruction;
    void* const* frames;
};

// A use and a touch that were seen together: where in the program each of them is.
using Pair = std::uint32_t;

// A file of this process in the folder, for the counts; some memory where that cannot be.
Counts& counts_in(const char* folder);

class Report {
  public:
    Report(const char* folder, Counts& counts, const Stacks& stacks);

    Pair say(const Race& race);
    // Of a process without a watcher.
    static void say_unwatched(const char* folder, const char* text);
    // A line about what could not be watched.
    void note(const char* text, const char* detail = "");
    bool gave_up(Pair pair) const { return given_up_[pair].load(std::memory_order_relaxed); }
    void give_up(Pair pair);
    void close_in_child();
    bool open_for_writing() const { return file_ >= 0; }

  private:
    void write_race(Pair pair, const Race& race);
    void write_line(Text& line);

    Counts& counts_;
    const Stacks& stacks_;
    OwnedLock lock_;
    int file_ = -1;
    std::uint64_t started_ns_;
    std::array<std::uint64_t, kPairsMax> places_{};
    std::size_t pairs_ = 0;
    std::array<std::atomic<bool>, kPairsMax> given_up_{};
    std::array<char, std::size_t{1} << 16> buffer_{};
};

}  // namespace hostrace
