"""The numbers that upstream's iteration statistics read. Fields can be written: newer builds subtract from them."""

from dataclasses import dataclass, field

from trtllm_kvfix.native import KvCacheStats


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
    """Of the iteration that ended last."""

    primary_max_num_blocks: int
    primary_free_num_blocks: int
    primary_used_num_blocks: int
    secondary_max_num_blocks: int
    secondary_free_num_blocks: int
    secondary_used_num_blocks: int
    iter_alloc_total_blocks: int
    iter_alloc_new_blocks: int
    iter_reused_blocks: int
    iter_full_reused_blocks: int
    iter_partial_reused_blocks: int
    iter_missed_blocks: int
    iter_cache_hit_rate: float
    iter_gen_alloc_blocks: int
    iter_onboard_blocks: int
    iter_onboard_bytes: int
    iter_offload_blocks: int
    iter_offload_bytes: int
    iter_intra_device_copy_blocks: int
    iter_intra_device_copy_bytes: int


def cache_stats(core: KvCacheStats, window: int, device_bytes: int) -> CacheStats:
    primary, total = core.windows[0].primary, core.total
    free = primary.free + primary.cached
    return CacheStats(
        max_num_blocks=primary.blocks,
        free_num_blocks=free,
        used_num_blocks=primary.blocks - free,
        tokens_per_block=core.tokens_per_block,
        alloc_total_blocks=total.blocks_new + total.blocks_grown,
        alloc_new_blocks=total.blocks_new,
        reused_blocks=total.blocks_reused,
        missed_blocks=total.blocks_missed,
        cache_hit_rate=_rate(total.blocks_reused, total.blocks_missed),
        allocated_bytes=device_bytes,
        num_free_blocks_per_window_size={window: free},
    )


def iteration_stats(core: KvCacheStats, slot_bytes: int) -> IterationStats:
    primary, host, seen = core.windows[0].primary, core.windows[0].host, core.iteration
    return IterationStats(
        primary_max_num_blocks=primary.blocks,
        primary_free_num_blocks=primary.free + primary.cached,
        primary_used_num_blocks=primary.blocks - primary.free - primary.cached,
        secondary_max_num_blocks=host.blocks,
        secondary_free_num_blocks=host.free + host.cached,
        secondary_used_num_blocks=host.blocks - host.free - host.cached,
        iter_alloc_total_blocks=seen.blocks_new + seen.blocks_grown,
        iter_alloc_new_blocks=seen.blocks_new,
        iter_reused_blocks=seen.blocks_reused,
        iter_full_reused_blocks=seen.blocks_reused - seen.blocks_reused_partial,
        iter_partial_reused_blocks=seen.blocks_reused_partial,
        iter_missed_blocks=seen.blocks_missed,
        iter_cache_hit_rate=_rate(seen.blocks_reused, seen.blocks_missed),
        iter_gen_alloc_blocks=seen.blocks_grown,
        iter_onboard_blocks=seen.blocks_onboarded,
        iter_onboard_bytes=seen.blocks_onboarded * slot_bytes,
        iter_offload_blocks=seen.blocks_offloaded,
        iter_offload_bytes=seen.blocks_offloaded * slot_bytes,
        iter_intra_device_copy_blocks=seen.blocks_copied,
        iter_intra_device_copy_bytes=seen.blocks_copied * slot_bytes,
    )


def _rate(reused: int, missed: int) -> float:
    return reused / (reused + missed) if reused + missed else 0.0
