#include "core/stats.h"

namespace kvfix {

void CacheCounters::add(const CacheCounters& other) {
    requests += other.requests;
    tokens_reused += other.tokens_reused;
    tokens_new += other.tokens_new;
    blocks_reused += other.blocks_reused;
    blocks_reused_partial += other.blocks_reused_partial;
    blocks_onboarded += other.blocks_onboarded;
    blocks_copied += other.blocks_copied;
    blocks_new += other.blocks_new;
    blocks_missed += other.blocks_missed;
    blocks_grown += other.blocks_grown;
    blocks_stored += other.blocks_stored;
    blocks_offloaded += other.blocks_offloaded;
    blocks_dropped += other.blocks_dropped;
    blocks_declined += other.blocks_declined;
    blocks_failed += other.blocks_failed;
}

}  // namespace kvfix
