// What is counted, in a file that is mapped, so that it outlives the process however it ends. src/hostrace/races.py
// reads the same layout.
#pragma once

#include <atomic>
#include <cstdint>

namespace hostrace {

inline constexpr std::size_t kPairsMax = 1024;

struct Counts {
    using Count = std::atomic<std::uint64_t>;
    Count guarded, faults_stale, steps, dropped;
    Count unwatched_streams;  // uses on a stream that took no flag
    Count trimmed;            // kernels' ranges that were cut to the limit
    Count pairs_lost;         // races that found no room
    Count gave_up;
    Count let_go;         // uses that had ended, and made room or were in the way before anybody observed their end
    Count unbegun;        // uses that were touched while the device still waited for the host
    Count own_order;      // launches of graphs in which the host takes part: these order their own nodes
    Count shared_pages;   // uses of which a part could not be protected: others have memory in its pages
    Count digested;       // sources of copies, or parts of them, that are compared instead
    Count unread_bodies;  // launches of graphs with conditional nodes of which the driver does not tell the bodies
    Count times[kPairsMax];
};

inline void count(Counts::Count& what, std::uint64_t by = 1) { what.fetch_add(by, std::memory_order_relaxed); }

}  // namespace hostrace
