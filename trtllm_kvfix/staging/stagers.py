"""One OffsetStager for each live host table, found by the table that a caller is about to ship from."""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trtllm_kvfix import native
from trtllm_kvfix.metrics import counters, counting
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.staging import current_place
from trtllm_kvfix.staging.read_back import ReadBack

# Kernels take that many scales (kPoolsMax in cpp/kernels/calls.h); a table of more pools is not staged by them.
POOLS_MAX = 64


def v1() -> Mapping[str, Any]:
    return {"layout": "v1"}


def v2(index_scales: Any, kv_offset: Any) -> Mapping[str, Any]:
    return {"layout": "v2", "index_scales": index_scales.tolist(), "kv_offset": kv_offset.tolist()}


Key = tuple[int, ...]  # identities; a look-up checks whether they still are the same objects
Work = tuple[float, ...]  # of one stager so far, in the order of the counters


class _Tally:
    """How much of one stager's work the counters have. Whoever adds holds the lock of `Stagers`."""

    def __init__(self) -> None:
        self._counted: Work = (0.0,) * len(_COUNTERS)

    def add(self, work: Work) -> None:
        for counter, new, old in zip(_COUNTERS, work, self._counted, strict=True):
            counter.add(new - old)
        self._counted = work


class _Entry(NamedTuple):
    objects: tuple["weakref.ref[Any]", ...]  # the table, and what the layout was made of
    stager: OffsetStager | None  # None: seen once
    tally: _Tally

    def is_for(self, objects: tuple[Any, ...]) -> bool:
        return all(mine() is theirs for mine, theirs in zip(self.objects, objects, strict=True))


class Stagers:
    """Tables are compared by identity: tensors compare element by element. A stager goes with its table."""

    def __init__(self, *, mode: str = "auto", slots: int = 3, read_back: ReadBack | None = None) -> None:
        self.read_back = read_back  # for the callers that ship with them
        self._mode = mode
        self._slots = slots
        self._entries: dict[Key, _Entry] = {}
        self._lock = threading.Lock()  # guards what follows, and making a stager
        self._gone: list[tuple[_Tally, Work]] = []  # of stagers that went with their tables, not counted yet
        counting.refresh(self)

    def of(self, table: Any, layout: Callable[[], Mapping[str, Any]]) -> OffsetStager:
        """`layout` is asked once for each table."""
        found = self._found((table,))
        if found is not None:
            return found
        with self._lock:
            return self._found((table,)) or self._made_for((table,), layout())

    def of_lasting(self, layout: Callable[[Any, Any], Mapping[str, Any]], *objects: Any) -> "OffsetStager | None":
        """The same for a table and the parts of its layout. Any of them may be a slice that lives for one call only, so
        this returns None until the same objects come again."""
        table, one, other = objects
        known = self._entries.get((id(table), id(one), id(other)))  # at every launch, so without more ado
        if known is not None and known.stager is not None:
            same = known.objects
            if same[0]() is table and same[1]() is one and same[2]() is other:
                return known.stager
        with self._lock:
            entry = self._entries.get(_key(objects))
            if entry is None or not entry.is_for(objects):
                self._keep(objects, None)
                return None
            return entry.stager or self._made_for(objects, layout(*objects[1:]))

    def settle(self, table: Any) -> None:
        """Wait until nothing reads this table any more."""
        stager = self._found((table,))
        if stager is not None:
            stager.settle()

    def count(self) -> None:
        """Add to the counters what the stagers have done since the last time."""
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.stager is not None:
                    entry.tally.add(_work_of(entry.stager))
            self._count_gone()

    def _found(self, objects: tuple[Any, ...]) -> OffsetStager | None:
        entry = self._entries.get(_key(objects))
        return entry.stager if entry is not None and entry.is_for(objects) else None

    def _made_for(self, objects: tuple[Any, ...], layout: Mapping[str, Any]) -> OffsetStager:
        self._count_gone()
        pools, rows, _, blocks = objects[0].shape
        stager = OffsetStager(
            num_pools=pools,
            rows_max=rows,
            blocks_max=blocks,
            device=current_place().device,
            mode=self._mode,
            slots=self._slots,
            **layout,
        )
        self._keep(objects, stager)
        return stager

    def _keep(self, objects: tuple[Any, ...], stager: OffsetStager | None) -> None:
        key = _key(objects)
        references = tuple(weakref.ref(each, lambda _: self._forget(key)) for each in objects)
        self._entries[key] = _Entry(references, stager, _Tally())

    def _forget(self, key: Key) -> None:
        """A table or a part is gone. The stager waits for pending work when it is collected.

        This runs wherever the object is dropped, in the middle of `count` as well, so it takes no lock and counts
        nothing itself.
        """
        entry = self._entries.get(key)
        if entry is not None and any(reference() is None for reference in entry.objects):
            del self._entries[key]
            if entry.stager is not None:
                self._gone.append((entry.tally, _work_of(entry.stager)))

    def _count_gone(self) -> None:
        while self._gone:
            tally, work = self._gone.pop()
            tally.add(work)


def _work_of(stager: OffsetStager) -> Work:
    stats = stager.stats()
    return stats.ships, stats.staged_bytes, stats.ring_waits, stats.wait_us / 1e6, stats.late_copies


def _key(objects: tuple[Any, ...]) -> Key:
    return tuple(map(id, objects))


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
    """The destination of a stager: a CUDA tensor as it is, or our own memory behind a tensor-like object."""
    kind = type(tensor)
    if kind not in _has_memory:  # torch takes a microsecond to say that it has no such attribute
        _has_memory[kind] = isinstance(getattr(tensor, "memory", None), native.DeviceArray)
    return tensor.memory if _has_memory[kind] else tensor


_has_memory: dict[type, bool] = {}
