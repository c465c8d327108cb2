// Numbers as Python sees them.
#pragma once

#include <map>

#include "types.h"

namespace bound {

struct CacheStats {
    int max_num_blocks = 0;
    int free_num_blocks = 0;
    int used_num_blocks = 0;
    int tokens_per_block = 0;
    int alloc_total_blocks = 0;
    int alloc_new_blocks = 0;
    int reused_blocks = 0;
    int missed_blocks = 0;
    double cache_hit_rate = 0.0;
    std::map<int, int> num_free_blocks_per_window_size;
    std::size_t allocated_bytes = 0;
};

struct IterationStats {
    int primary_max_num_blocks = 0;
    int primary_free_num_blocks = 0;
    int primary_used_num_blocks = 0;
    int secondary_max_num_blocks = 0;
    int secondary_free_num_blocks = 0;
    int secondary_used_num_blocks = 0;
    int iter_alloc_total_blocks = 0;
    int iter_alloc_new_blocks = 0;
    int iter_reused_blocks = 0;
    int iter_full_reused_blocks = 0;
    int iter_partial_reused_blocks = 0;
    int iter_missed_blocks = 0;
    double iter_cache_hit_rate = 0.0;
    int iter_gen_alloc_blocks = 0;
    int iter_onboard_blocks = 0;
    std::size_t iter_onboard_bytes = 0;
    int iter_offload_blocks = 0;
    std::size_t iter_offload_bytes = 0;
    int iter_intra_device_copy_blocks = 0;
    std::size_t iter_intra_device_copy_bytes = 0;
};

}  // namespace bound
