"""One OffsetStager for each live host table, found by the table that a caller is about to ship from."""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trtllm_kvfix import native
from trtllm_kvfix.metrics import counters, counting
from trtllm_kvfix.staging import OffsetStager, current_place

# Kernels take that many scales (kPoolsMax in cpp/kernels/calls.h); a table of more pools goes another way.
POOLS_MAX = 64


def v1() -> Mapping[str, Any]:
    return {"layout": "v1"}


def v2(index_scales: Any, kv_offset: Any) -> Mapping[str, Any]:
    return {"layout": "v2", "index_scales": index_scales.tolist(), "kv_offset": kv_offset.tolist()}


class _Entry(NamedTuple):
    table: "weakref.ref[Any]"
    stager: OffsetStager


class Stagers:
    """Tables are told apart by identity: tensors compare element by element. A stager goes with its table."""

    def __init__(self, *, mode: str = "auto", slots: int = 3) -> None:
        self._mode = mode
        self._slots = slots
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.Lock()  # guards what follows, and making a stager
        self._counted: dict[int, tuple[float, ...]] = {}
        counting.refresh(self)

    def of(self, table: Any, layout: Callable[[], Mapping[str, Any]]) -> OffsetStager:
        """`layout` is asked once for each table."""
        found = self._found(table)
        if found is not None:
            return found
        with self._lock:
            return self._found(table) or self._made_for(table, layout())

    def count(self) -> None:
        """Add to the counters what the stagers have done since the last time."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                self._count(key, entry.stager)

    def _found(self, table: Any) -> OffsetStager | None:
        entry = self._entries.get(id(table))
        return entry.stager if entry is not None and entry.table() is table else None

    def _made_for(self, table: Any, layout: Mapping[str, Any]) -> OffsetStager:
        pools, rows, _, blocks = table.shape
        stager = OffsetStager(
            num_pools=pools,
            rows_max=rows,
            blocks_max=blocks,
            device=current_place().device,
            mode=self._mode,
            slots=self._slots,
            **layout,
        )
        key = id(table)
        self._entries[key] = _Entry(weakref.ref(table, lambda _: self._forget(key)), stager)
        self._counted.pop(key, None)
        return stager

    def _forget(self, key: int) -> None:
        """The table is gone. Its stager waits for what is pending when it is collected."""
        entry = self._entries.get(key)
        if entry is not None and entry.table() is None:
            del self._entries[key]
            self._count(key, entry.stager)
            self._counted.pop(key, None)

    def _count(self, key: int, stager: OffsetStager) -> None:
        stats = stager.stats()
        now = (stats.ships, stats.staged_bytes, stats.ring_waits, stats.wait_us / 1e6, stats.late_copies)
        before = self._counted.get(key, (0.0,) * len(_COUNTERS))
        for counter, new, old in zip(_COUNTERS, now, before, strict=True):
            counter.add(new - old)
        self._counted[key] = now


_COUNTERS = (
    counters.staged_shipments,
    counters.staged_bytes,
    counters.ring_waits,
    counters.ring_wait_seconds,
    counters.late_copies,
)


def is_too_wide(table: Any) -> bool:
    return bool(table.shape[0] > POOLS_MAX)


def memory_of(tensor: Any) -> Any:
    """What a stager ships to: a CUDA tensor as it is, or the memory of our own behind a tensor-like object."""
    kind = type(tensor)
    if kind not in _has_memory:  # torch takes a microsecond to say that it has no such attribute
        _has_memory[kind] = isinstance(getattr(tensor, "memory", None), native.DeviceArray)
    return tensor.memory if _has_memory[kind] else tensor


_has_memory: dict[type, bool] = {}
