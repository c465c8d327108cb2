#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "core/stats.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

std::string text_of(const TierStats& s) {
    return Repr("TierStats")
        .add("blocks", s.blocks)
        .add("free", s.free)
        .add("cached", s.cached)
        .add("owned", s.owned)
        .add("in_flight", s.in_flight)
        .text();
}

void bind_cache_counters(nb::module_& m) {
    nb::class_<CacheCounters>(m, "CacheCounters", "What happened during an iteration, or since the start.")
        .def_ro("requests", &CacheCounters::requests, "Requests admitted.")
        .def_ro("tokens_reused", &CacheCounters::tokens_reused, "Prompt tokens that were found in the cache.")
        .def_ro("tokens_new", &CacheCounters::tokens_new, "Prompt tokens that had to be computed.")
        .def_ro("blocks_reused", &CacheCounters::blocks_reused, "Blocks claimed by admissions.")
        .def_ro("blocks_reused_partial", &CacheCounters::blocks_reused_partial,
                "Reused blocks of which only a part matched.")
        .def_ro("blocks_onboarded", &CacheCounters::blocks_onboarded, "Copies from host to primary.")
        .def_ro("blocks_copied", &CacheCounters::blocks_copied, "Copies within primary.")
        .def_ro("blocks_new", &CacheCounters::blocks_new, "Prompt blocks without any reused token.")
        .def_ro("blocks_missed", &CacheCounters::blocks_missed, "Full prompt blocks that were not reused.")
        .def_ro("blocks_grown", &CacheCounters::blocks_grown, "Blocks that growth took.")
        .def_ro("blocks_stored", &CacheCounters::blocks_stored, "Blocks that entered the tree.")
        .def_ro("blocks_offloaded", &CacheCounters::blocks_offloaded, "Copies from primary to host.")
        .def_ro("blocks_dropped", &CacheCounters::blocks_dropped,
                "Blocks whose content was lost to eviction, those behind them included.")
        .def_ro("blocks_declined", &CacheCounters::blocks_declined,
                "Evicted blocks that might not push another out of host. They were dropped.")
        .def_ro("blocks_failed", &CacheCounters::blocks_failed, "Copies that failed.")
        .def("__repr__", [](const CacheCounters& c) {
            return Repr("CacheCounters")
                .add_unless_zero("requests", c.requests)
                .add_unless_zero("tokens_reused", c.tokens_reused)
                .add_unless_zero("tokens_new", c.tokens_new)
                .add_unless_zero("blocks_reused", c.blocks_reused)
                .add_unless_zero("blocks_reused_partial", c.blocks_reused_partial)
                .add_unless_zero("blocks_onboarded", c.blocks_onboarded)
                .add_unless_zero("blocks_copied", c.blocks_copied)
                .add_unless_zero("blocks_new", c.blocks_new)
                .add_unless_zero("blocks_missed", c.blocks_missed)
                .add_unless_zero("blocks_grown", c.blocks_grown)
                .add_unless_zero("blocks_stored", c.blocks_stored)
                .add_unless_zero("blocks_offloaded", c.blocks_offloaded)
                .add_unless_zero("blocks_dropped", c.blocks_dropped)
                .add_unless_zero("blocks_declined", c.blocks_declined)
                .add_unless_zero("blocks_failed", c.blocks_failed)
                .text();
        });
}

void bind_request_stats(nb::module_& m) {
    nb::class_<RequestStats>(m, "RequestStats", "What one live request got, and how it grew.")
        .def_ro("tokens_reused", &RequestStats::tokens_reused, "Prompt tokens that were found in the cache.")
        .def_ro("tokens_new", &RequestStats::tokens_new, "Prompt tokens that had to be computed.")
        .def_ro("blocks_reused", &RequestStats::blocks_reused, "Blocks claimed by its admission.")
        .def_ro("blocks_onboarded", &RequestStats::blocks_onboarded,
                "Copies from host to primary that its admission queued.")
        .def_ro("blocks_new", &RequestStats::blocks_new, "Prompt blocks without any reused token.")
        .def_ro("blocks_missed", &RequestStats::blocks_missed,
                "Full prompt blocks that were not reused, summed over windows.")
        .def_ro("blocks_grown", &RequestStats::blocks_grown, "Blocks that growth took.")
        .def("__repr__", [](const RequestStats& s) {
            return Repr("RequestStats")
                .add("tokens_reused", s.tokens_reused)
                .add("tokens_new", s.tokens_new)
                .add("blocks_reused", s.blocks_reused)
                .add("blocks_onboarded", s.blocks_onboarded)
                .add("blocks_new", s.blocks_new)
                .add("blocks_missed", s.blocks_missed)
                .add("blocks_grown", s.blocks_grown)
                .text();
        });
}

void bind_slots(nb::module_& m) {
    nb::class_<TierStats>(m, "TierStats", "blocks = free + cached + owned + in_flight")
        .def_ro("blocks", &TierStats::blocks, "All slots of the tier.")
        .def_ro("free", &TierStats::free, "Slots that hold nothing.")
        .def_ro("cached", &TierStats::cached, "Slots that can be found and that eviction may take.")
        .def_ro("owned", &TierStats::owned, "Slots that live sequences own, and slots that are pinned, locked or kept.")
        .def_ro("in_flight", &TierStats::in_flight, "Slots that a transfer still writes.")
        .def("__repr__", &text_of);
    nb::class_<WindowStats>(m, "WindowStats", "One window's slots.")
        .def_ro("window_size", &WindowStats::window_size, "None: full attention.")
        .def_ro("primary", &WindowStats::primary, "The slots on the GPU.")
        .def_ro("host", &WindowStats::host, "The slots of the host tier.")
        .def_ro("kept", &WindowStats::kept,
                "Primary slots, free or cached, that are kept for later chunks of live prompts.")
        .def("__repr__", [](const WindowStats& w) {
            return Repr("WindowStats")
                .add("window_size", w.window_size)
                .add("primary", text_of(w.primary))
                .add("host", text_of(w.host))
                .add("kept", w.kept)
                .text();
        });
}

void bind_kv_cache_stats(nb::module_& m) {
    nb::class_<KvCacheStats>(m, "KvCacheStats", "A snapshot; reading it resets nothing.")
        .def_ro("max_num_blocks", &KvCacheStats::max_num_blocks, "Primary slots, all windows.")
        .def_ro("free_num_blocks", &KvCacheStats::free_num_blocks, "Primary slots that are free or cached.")
        .def_ro("used_num_blocks", &KvCacheStats::used_num_blocks, "Primary slots that are owned or in flight.")
        .def_ro("tokens_per_block", &KvCacheStats::tokens_per_block, "Of the manager.")
        .def_ro("cache_hit_rate", &KvCacheStats::cache_hit_rate, "Blocks reused / (reused + missed), since the start.")
        .def_ro("windows", &KvCacheStats::windows, "Each window's slots, ascending by size.")
        .def_ro("total", &KvCacheStats::total, "Since the start.")
        .def_ro("iteration", &KvCacheStats::iteration, "In the iteration that the last refresh_blocks() ended.")
        .def_ro("current", &KvCacheStats::current, "Since the last refresh_blocks().")
        .def_ro("events_dropped", &KvCacheStats::events_dropped, "Events that were dropped before anybody read them.")
        .def_ro("sequences", &KvCacheStats::sequences, "Live sequences.")
        .def_ro("sequences_suspended", &KvCacheStats::sequences_suspended, "Suspended sequences.")
        .def("__repr__", [](const KvCacheStats& s) {
            return Repr("KvCacheStats")
                .add("sequences", s.sequences)
                .add("sequences_suspended", s.sequences_suspended)
                .add("max_num_blocks", s.max_num_blocks)
                .add("free_num_blocks", s.free_num_blocks)
                .add("used_num_blocks", s.used_num_blocks)
                .add("tokens_per_block", s.tokens_per_block)
                .add("cache_hit_rate", s.cache_hit_rate)
                .add("windows", s.windows.size())
                .text();
        });
}

}  // namespace

void bind_stats(nb::module_& m) {
    bind_cache_counters(m);
    bind_request_stats(m);
    bind_slots(m);
    bind_kv_cache_stats(m);
}

}  // namespace kvfix::bindings
