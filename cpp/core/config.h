// What a manager is made of. Refused at construction when it makes no sense; never changed afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_hash.h"
#include "core/types.h"

namespace kvfix {

struct WindowConfig {
    WindowSize window_size;
    std::uint32_t blocks_primary = 0;
    std::uint32_t blocks_host = 0;
};

// From the system's entropy.
Secret drawn_seed();

struct BlockManagerConfig {
    std::uint32_t tokens_per_block = 0;
    std::vector<WindowConfig> windows;  // ascending; exactly one without a size, or all with one
    std::uint32_t beam_width_max = 1;
    bool block_reuse = true;
    bool partial_reuse = true;
    bool copy_on_partial_reuse = true;
    Priority offload_priority_min = 30;
    std::uint32_t events_max = 0;
    std::uint32_t hash_bits = kBlockHashBits;  // fewer force collisions: a test instrument
    // The key of all hashes. Ranks that compare hashes or digests of events have one seed; strangers do not know it.
    Secret seed = drawn_seed();
};

// Throws std::invalid_argument that names the field, the value and the limit.
void check_config(const BlockManagerConfig& config);

}  // namespace kvfix
