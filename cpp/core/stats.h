// Numbers that operators and tests read. Plain values, copied out under the manager's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace kvfix {

// Kept by the manager, for an iteration or for its whole life.
struct CacheCounters {
    std::uint64_t requests = 0;
    std::uint64_t tokens_reused = 0;
    std::uint64_t tokens_new = 0;
    std::uint64_t blocks_reused = 0;
    std::uint64_t blocks_reused_partial = 0;
    std::uint64_t blocks_onboarded = 0;
    std::uint64_t blocks_copied = 0;
    std::uint64_t blocks_new = 0;
    std::uint64_t blocks_missed = 0;
    std::uint64_t blocks_grown = 0;
    std::uint64_t blocks_stored = 0;
    std::uint64_t blocks_offloaded = 0;
    std::uint64_t blocks_dropped = 0;   // content lost to eviction, descendants included
    std::uint64_t blocks_declined = 0;  // evicted blocks, dropped too, that might not push another out of host
    std::uint64_t blocks_failed = 0;    // transfers that failed

    void add(const CacheCounters& other);
};

// Kept by a sequence.
struct RequestStats {
    std::uint64_t tokens_reused = 0;
    std::uint64_t tokens_new = 0;
    std::uint64_t blocks_reused = 0;
    std::uint64_t blocks_onboarded = 0;
    std::uint64_t blocks_new = 0;
    std::uint64_t blocks_missed = 0;
    std::uint64_t blocks_grown = 0;
};

// blocks = free + cached + owned + in_flight
struct TierStats {
    std::uint64_t blocks = 0;
    std::uint64_t free = 0;
    std::uint64_t cached = 0;
    std::uint64_t owned = 0;
    std::uint64_t in_flight = 0;
};

struct WindowStats {
    WindowSize window_size;
    TierStats primary;
    TierStats host;
    std::uint64_t kept = 0;  // primary slots, free or cached, for the rest of prompts that were admitted in chunks
};

struct KvCacheStats {
    std::uint64_t max_num_blocks = 0;   // primary, all windows
    std::uint64_t free_num_blocks = 0;  // free or cached, kept ones included
    std::uint64_t used_num_blocks = 0;  // owned or in flight
    std::uint32_t tokens_per_block = 0;
    double cache_hit_rate = 0;  // blocks reused / (reused + missed), since the start
    std::vector<WindowStats> windows;
    CacheCounters total;
    CacheCounters iteration;  // the one that the last refresh_blocks() ended
    CacheCounters current;    // since then
    std::uint64_t events_dropped = 0;
    std::uint64_t sequences = 0;  // in primary
    std::uint64_t sequences_suspended = 0;
};

}  // namespace kvfix
