"""The numbers that upstream's iteration statistics read. Fields are writable: newer builds subtract from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtllm_kvfix.native import CacheCounters, KvCacheStats


@dataclass
class CacheStats:
    max_num_blocks: int
    free_num_blocks: int
    used_num_blocks: int
    tokens_per_block: int
    alloc_total_blocks: int
    alloc_new_blocks: int
    reused_blocks: int
    missed_blocks: int
    cache_hit_rate: float
    allocated_bytes: int  # on the device
    num_free_blocks_per_window_size: dict[int, int] = field(default_factory=dict)


@dataclass
class IterationStats:
    """The numbers of the iteration that ended last."""

    primary_max_num_blocks: int
    primary_free_num_blocks: int
    primary_used_num_blocks: int
    secondary_max_num_blocks: int
    secondary_free_num_blocks: int
    secondary_used_num_blocks: int
    iter_alloc_total_blocks: int = 0
    iter_alloc_new_blocks: int = 0
    iter_reused_blocks: int = 0
    iter_full_reused_blocks: int = 0
    iter_partial_reused_blocks: int = 0
    iter_missed_blocks: int = 0
    iter_cache_hit_rate: float = 0.0
    iter_gen_alloc_blocks: int = 0
    iter_onboard_blocks: int = 0
    iter_onboard_bytes: int = 0
    iter_offload_blocks: int = 0
    iter_offload_bytes: int = 0
    iter_intra_device_copy_blocks: int = 0
    iter_intra_device_copy_bytes: int = 0


def cache_stats(core: KvCacheStats, sizes: Sequence[int], device_bytes: int) -> CacheStats:
    """`sizes` are those of the windows, ascending."""
    total, tiers = core.total, [window.primary for window in core.windows]
    free = [primary.free + primary.cached for primary in tiers]
    blocks = sum(primary.blocks for primary in tiers)
    return CacheStats(
        max_num_blocks=blocks,
        free_num_blocks=sum(free),
        used_num_blocks=blocks - sum(free),
        tokens_per_block=core.tokens_per_block,
        alloc_total_blocks=total.blocks_new + total.blocks_grown,
        alloc_new_blocks=total.blocks_new,
        reused_blocks=total.blocks_reused,
        missed_blocks=total.blocks_missed,
        cache_hit_rate=_rate(total.blocks_reused, total.blocks_missed),
        allocated_bytes=device_bytes,
        num_free_blocks_per_window_size=dict(zip(sizes, free, strict=True)),
    )


def iteration_stats(core: KvCacheStats, window: int, seen: CacheCounters | None, slot_bytes: int) -> IterationStats:
    """`seen` has the cache's counters if this window is the one that shows them."""
    primary, host = core.windows[window].primary, core.windows[window].host
    found = IterationStats(
        primary_max_num_blocks=primary.blocks,
        primary_free_num_blocks=primary.free + primary.cached,
        primary_used_num_blocks=primary.blocks - primary.free - primary.cached,
        secondary_max_num_blocks=host.blocks,
        secondary_free_num_blocks=host.free + host.cached,
        secondary_used_num_blocks=host.blocks - host.free - host.cached,
    )
    if seen is not None:
        _count(found, seen, slot_bytes)
    return found


def _count(found: IterationStats, seen: CacheCounters, slot_bytes: int) -> None:
    found.iter_alloc_total_blocks = seen.blocks_new + seen.blocks_grown
    found.iter_alloc_new_blocks = seen.blocks_new
    found.iter_reused_blocks = seen.blocks_reused
    found.iter_full_reused_blocks = seen.blocks_reused - seen.blocks_reused_partial
    found.iter_partial_reused_blocks = seen.blocks_reused_partial
    found.iter_missed_blocks = seen.blocks_missed
    found.iter_cache_hit_rate = _rate(seen.blocks_reused, seen.blocks_missed)
    found.iter_gen_alloc_blocks = seen.blocks_grown
    found.iter_onboard_blocks = seen.blocks_onboarded
    found.iter_onboard_bytes = seen.blocks_onboarded * slot_bytes
    found.iter_offload_blocks = seen.blocks_offloaded
    found.iter_offload_bytes = seen.blocks_offloaded * slot_bytes
    found.iter_intra_device_copy_blocks = seen.blocks_copied
    found.iter_intra_device_copy_bytes = seen.blocks_copied * slot_bytes


def _rate(reused: int, missed: int) -> float:
    return reused / (reused + missed) if reused + missed else 0.0
