#include "core/report.h"

#include <algorithm>

namespace kvfix {
namespace {

WindowStats stats_of(const Window& window) {
    // Pins may hold some of what is kept. Then what is free or cached is all kept, and none of it is available.
    const std::uint64_t kept = std::min(window.slots_kept, window.there());
    WindowStats out{.window_size = window.config.window_size, .primary = {}, .host = {}, .kept = kept};
    const auto fill = [&](TierStats& stats, std::size_t tier, std::uint64_t cached) {
        stats.blocks = window.blocks.slots(tier);
        stats.free = window.blocks.slots_free(tier);
        stats.cached = cached;
        stats.in_flight = window.in_flight[tier];
        stats.owned = stats.blocks - stats.free - stats.cached - stats.in_flight;
    };
    fill(out.primary, kPrimary, window.primary_queue.size());
    fill(out.host, kHost, window.evictable_in_host());
    return out;
}

}  // namespace

KvCacheStats stats_of(const State& state) {
    KvCacheStats out;
    out.tokens_per_block = state.config.tokens_per_block;
    out.total = state.closed;
    out.total.add(state.current);
    out.iteration = state.iteration;
    out.current = state.current;
    out.events_dropped = state.events.dropped();
    out.sequences = state.sequences.size() - state.sequences_suspended;
    out.sequences_suspended = state.sequences_suspended;
    for (const Window& each : state.windows) {
        const WindowStats window = stats_of(each);
        out.max_num_blocks += window.primary.blocks;
        out.free_num_blocks += window.primary.free + window.primary.cached;
        out.used_num_blocks += window.primary.owned + window.primary.in_flight;
        out.windows.push_back(window);
    }
    const std::uint64_t looked_up = out.total.blocks_reused + out.total.blocks_missed;
    out.cache_hit_rate =
        looked_up == 0 ? 0 : static_cast<double>(out.total.blocks_reused) / static_cast<double>(looked_up);
    return out;
}

}  // namespace kvfix
