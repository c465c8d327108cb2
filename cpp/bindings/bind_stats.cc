#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/stats.h"

namespace nb = nanobind;

namespace kvfix::bindings {

void bind_stats(nb::module_& m) {
    nb::class_<CacheCounters>(m, "CacheCounters", "What happened over an iteration, or since the start.")
        .def_ro("requests", &CacheCounters::requests)
        .def_ro("tokens_reused", &CacheCounters::tokens_reused)
        .def_ro("tokens_new", &CacheCounters::tokens_new)
        .def_ro("blocks_reused", &CacheCounters::blocks_reused)
        .def_ro("blocks_reused_partial", &CacheCounters::blocks_reused_partial)
        .def_ro("blocks_onboarded", &CacheCounters::blocks_onboarded)
        .def_ro("blocks_copied", &CacheCounters::blocks_copied)
        .def_ro("blocks_new", &CacheCounters::blocks_new)
        .def_ro("blocks_missed", &CacheCounters::blocks_missed)
        .def_ro("blocks_grown", &CacheCounters::blocks_grown)
        .def_ro("blocks_stored", &CacheCounters::blocks_stored)
        .def_ro("blocks_offloaded", &CacheCounters::blocks_offloaded)
        .def_ro("blocks_dropped", &CacheCounters::blocks_dropped)
        .def_ro("blocks_failed", &CacheCounters::blocks_failed);
    nb::class_<RequestStats>(m, "RequestStats", "What one live request got and grew.")
        .def_ro("tokens_reused", &RequestStats::tokens_reused)
        .def_ro("tokens_new", &RequestStats::tokens_new)
        .def_ro("blocks_reused", &RequestStats::blocks_reused)
        .def_ro("blocks_onboarded", &RequestStats::blocks_onboarded)
        .def_ro("blocks_new", &RequestStats::blocks_new)
        .def_ro("blocks_missed", &RequestStats::blocks_missed)
        .def_ro("blocks_grown", &RequestStats::blocks_grown);
    nb::class_<TierStats>(m, "TierStats", "blocks = free + cached + owned + in_flight")
        .def_ro("blocks", &TierStats::blocks)
        .def_ro("free", &TierStats::free)
        .def_ro("cached", &TierStats::cached)
        .def_ro("owned", &TierStats::owned)
        .def_ro("in_flight", &TierStats::in_flight);
    nb::class_<WindowStats>(m, "WindowStats", "One window's slots.")
        .def_ro("window_size", &WindowStats::window_size)
        .def_ro("primary", &WindowStats::primary)
        .def_ro("host", &WindowStats::host)
        .def_ro("kept", &WindowStats::kept);
    nb::class_<KvCacheStats>(m, "KvCacheStats", "A snapshot; reading it resets nothing.")
        .def_ro("max_num_blocks", &KvCacheStats::max_num_blocks)
        .def_ro("free_num_blocks", &KvCacheStats::free_num_blocks)
        .def_ro("used_num_blocks", &KvCacheStats::used_num_blocks)
        .def_ro("tokens_per_block", &KvCacheStats::tokens_per_block)
        .def_ro("cache_hit_rate", &KvCacheStats::cache_hit_rate)
        .def_ro("windows", &KvCacheStats::windows)
        .def_ro("total", &KvCacheStats::total)
        .def_ro("iteration", &KvCacheStats::iteration)
        .def_ro("current", &KvCacheStats::current)
        .def_ro("events_dropped", &KvCacheStats::events_dropped)
        .def_ro("sequences", &KvCacheStats::sequences);
}

}  // namespace kvfix::bindings
