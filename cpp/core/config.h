// The settings of a manager. They are checked at construction and never change afterwards.
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

// Which evicted blocks may push others out of a full host tier. With adaptive, blocks for which no second request has
// asked may take no more than a share of it, which follows what comes back (newcomers.h).
enum class HostAdmission : std::uint8_t { all, adaptive };

// A seed from the system's entropy.
Secret drawn_seed();

struct BlockManagerConfig {
    std::uint32_t tokens_per_block = 0;
    std::vector<WindowConfig> windows;  // ascending; either exactly one window without a size, or all with one
    std::uint32_t beam_width_max = 1;
    bool block_reuse = true;
    bool partial_reuse = true;
    bool copy_on_partial_reuse = true;
    Priority offload_priority_min = 30;
    HostAdmission host_admission = HostAdmission::all;
    std::uint32_t events_max = 0;
    std::uint32_t hash_bits = kBlockHashBits;  // fewer force collisions, for tests
    // The key of all hashes. Ranks that compare hashes or digests of events share one seed. Keep it from clients.
    Secret seed = drawn_seed();
};

// Throws std::invalid_argument that names the field, the value and the limit.
void check_config(const BlockManagerConfig& config);

}  // namespace kvfix
