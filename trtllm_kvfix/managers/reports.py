"""What others read of the cache, under upstream's names: events, and the numbers of iteration statistics.

Events have the names that upstream's serialiser and routers read. Upstream's constructor makes an event manager by a
module-level name and passes it on. Ours takes its place there, so that the size of its buffer is known. A block's
number has 64 bits there: the first half of our hash.

The fields of statistics are writable, because newer builds subtract from them.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.native import BlockEvent, CacheCounters, KvCacheStats

LEVELS = {"primary": 0, "host": 1}
FIRST_HALF = 2**64 - 1


class UniqueToken(NamedTuple):
    token_id: int
    token_extra_id: int = 0


@dataclass
class KVCacheCreatedData:
    num_blocks_per_cache_level: list[int]


@dataclass
class KVCacheStoredBlockData:
    block_hash: int
    tokens: list[UniqueToken]
    lora_id: int | None
    cache_level: int
    priority: int
    mm_keys: list[tuple[bytes, int]]  # digest of an image, and where it begins, counted from the block's first token
    cache_salt: Any


@dataclass
class KVCacheStoredData:
    parent_hash: int | None
    blocks: list[KVCacheStoredBlockData]


@dataclass
class KVCacheRemovedData:
    block_hashes: list[int]


@dataclass
class KVCacheEventDiff:
    old_value: int
    new_value: int


@dataclass
class KVCacheUpdatedData:
    block_hash: int
    cache_level: KVCacheEventDiff | None = None
    priority: KVCacheEventDiff | None = None


@dataclass
class KVCacheEvent:
    event_id: int
    data: Any
    window_size: int
    attention_dp_rank: int | None = None


@dataclass
class _Known:
    """A cached block as its last event described it."""

    cache_level: int
    priority: int


class EventManager:
    """One thread adds; any may read."""

    def __init__(self, max_kv_event_entries: int, **of_attention_dp: Any) -> None:
        if of_attention_dp:
            raise NotServed("event_manager: events of attention data parallelism are not served")
        self.entries_max = max_kv_event_entries
        self._next_id = 0
        self._known: dict[tuple[int, int], _Known] = {}
        self._waiting: deque[KVCacheEvent] = deque(maxlen=max_kv_event_entries)  # the oldest go first
        self._some = threading.Condition()

    def created(self, window: int, blocks: list[int]) -> None:
        self._append([(window, KVCacheCreatedData(blocks))])

    def add(self, events: Iterable[BlockEvent], window: int) -> None:
        """The core's events since the last call, in order. `window` is that of events that name none: the only one."""
        named = ((event.window_size or window, event) for event in events)
        for each, neighbours in groupby(named, key=itemgetter(0)):
            self._append([(each, data) for data in self._merged((event for _, event in neighbours), each)])

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """The events since the last call. Waits for the first of them; for ever if no limit is given."""
        with self._some:
            self._some.wait_for(lambda: self._waiting, None if timeout_ms is None else timeout_ms / 1000)
            found = list(self._waiting)
            self._waiting.clear()
        return found

    def _append(self, said: list[tuple[int, Any]]) -> None:
        if not said:
            return
        with self._some:
            for window, data in said:
                self._waiting.append(KVCacheEvent(self._next_id, data, window))
                self._next_id += 1
            self._some.notify_all()

    def _merged(self, events: Iterable[BlockEvent], window: int) -> Iterator[Any]:
        """Blocks that follow one another in a prompt are stored by one event, and neighbours removed by one."""
        last: Any = None
        for event in events:
            data = self._data_of(event, window)
            if isinstance(last, KVCacheStoredData) and isinstance(data, KVCacheStoredData):
                if data.parent_hash == last.blocks[-1].block_hash:
                    last.blocks += data.blocks
                    continue
            elif isinstance(last, KVCacheRemovedData) and isinstance(data, KVCacheRemovedData):
                last.block_hashes += data.block_hashes
                continue
            if last is not None:
                yield last
            last = data
        if last is not None:
            yield last

    def _data_of(self, event: BlockEvent, window: int) -> Any:
        name, level = event.block_hash & FIRST_HALF, LEVELS[event.tier]
        if event.kind == "removed":
            self._known.pop((window, name), None)
            return KVCacheRemovedData([name])
        known = self._known.get((window, name))
        self._known[window, name] = _Known(level, event.priority)
        if event.kind == "stored":
            parent = None if event.parent_hash is None else event.parent_hash & FIRST_HALF
            return KVCacheStoredData(parent, [_stored(event, name, level)])
        changed = KVCacheUpdatedData(name)
        if known is not None and known.cache_level != level:
            changed.cache_level = KVCacheEventDiff(known.cache_level, level)
        if known is not None and known.priority != event.priority:
            changed.priority = KVCacheEventDiff(known.priority, event.priority)
        return changed


def _stored(event: BlockEvent, name: int, level: int) -> KVCacheStoredBlockData:
    return KVCacheStoredBlockData(
        block_hash=name,
        tokens=[UniqueToken(token) for token in event.tokens],
        lora_id=event.lora_id,
        cache_level=level,
        priority=event.priority,
        mm_keys=[(digest, begin) for begin, _, digest in event.extra_keys],
        cache_salt=event.salt,
    )


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
