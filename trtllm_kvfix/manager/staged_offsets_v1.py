"""V1 block offsets: upstream fills its persistent table as ever, and what it would copy from there is staged (H1).

Upstream's own code runs, with a destination of ours in the place of the device tensor. So whatever a version does about
beams, cross attention or widths stays as it is, and only these statements change their meaning:

    dst[pool, :num_seqs].copy_(table[pool, :num_seqs], non_blocking=True)  # reads the table when the stream gets there
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from trtllm_kvfix.manager.stagers import Stagers, is_too_wide, memory_of, v1

WORD_BYTES = 4


class _Part(NamedTuple):
    rows: int
    width: int | None


class StagedDestination:
    """The device tensor as upstream's method sees it: indexing and `copy_` are ours, the rest is the tensor's own."""

    def __init__(self, tensor: Any, table: Any, stagers: Stagers) -> None:
        self._tensor = tensor
        self._table = table
        self._stagers = stagers
        self._pools, rows, planes, blocks = table.shape
        self._pool_bytes = rows * planes * blocks * WORD_BYTES
        self._address = table.data_ptr()
        self._parts: dict[int, _Part] = {}  # by pool

    def __getitem__(self, index: Any) -> "_Selection":
        return _Selection(self, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def receive(self, index: Any, source: Any, non_blocking: bool) -> None:
        """Where upstream copies out of the live table, ship a snapshot; the rest goes through, but never racing."""
        pool, part = self._recognised(index, source)
        if part is None:
            source = source.clone() if self._is_live(source) else source
            self._tensor[index].copy_(source, non_blocking=non_blocking)
        elif pool is None:
            self._parts = dict.fromkeys(range(self._pools), part)
            self.flush()
        else:
            self._parts[pool] = part
            if len(self._parts) == self._pools:
                self.flush()

    def flush(self) -> None:
        """Pools that were copied one by one go out together; if they differ, or are too many, each by itself."""
        parts, self._parts = self._parts, {}
        if len(parts) == self._pools and len(set(parts.values())) == 1 and not is_too_wide(self._table):
            self._ship(parts[0])
            return
        for pool, (rows, width) in parts.items():
            index = (pool, slice(None, rows), slice(None), slice(None, width))
            self._tensor[index].copy_(self._table[index].clone(), non_blocking=True)

    def _ship(self, part: _Part) -> None:
        stager = self._stagers.of(self._table, v1)
        stager.ship(memory_of(self._tensor), self._table, range(part.rows), width=part.width)

    def _recognised(self, index: Any, source: Any) -> tuple[int | None, _Part | None]:
        """(pool or None for all, part) where these are the first rows of the table going to the same place."""
        offset = source.data_ptr() - self._address
        if not isinstance(index, tuple) or not 2 <= len(index) <= 4 or not 0 <= offset < self._pools * self._pool_bytes:
            return None, None
        pool, rows, *rest = index
        if not all(isinstance(each, slice) and each.start is None and each.step is None for each in index[1:]):
            return None, None
        if rows.stop is None or (rest and rest[0].stop is not None):
            return None, None
        part = _Part(rows.stop, rest[1].stop if len(rest) == 2 else None)
        if pool == slice(None):
            return None, part if offset == 0 else None
        return pool, part if isinstance(pool, int) and offset == pool * self._pool_bytes else None

    def _is_live(self, source: Any) -> bool:
        """Whether the source lies in the live table."""
        return bool(0 <= source.data_ptr() - self._address < self._pools * self._pool_bytes)


class _Selection:
    def __init__(self, destination: StagedDestination, index: Any) -> None:
        self._destination = destination
        self._index = index

    def copy_(self, source: Any, non_blocking: bool = False) -> "_Selection":
        self._destination.receive(self._index, source, non_blocking)
        return self


def staged_copy(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of a manager that owns its table. What follows `dst_tensor` is upstream's business."""

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        destination = StagedDestination(dst_tensor, self.host_kv_cache_block_offsets, stagers)
        result = original(self, destination, *args, **kwargs)
        destination.flush()
        return result

    return copy_batch_block_offsets


def staged_prepare(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`prepare` of attention metadata that owns the table and the copy, as upstream had it before the manager did."""

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = getattr(self, "kv_cache_block_offsets", None)
        table = getattr(self, "host_kv_cache_block_offsets", None)
        if tensor is None or table is None:
            return original(self, *args, **kwargs)
        destination = StagedDestination(tensor, table, stagers)
        self.kv_cache_block_offsets = destination
        try:
            result = original(self, *args, **kwargs)
            destination.flush()
        finally:
            # A prepare that put another tensor there meant it.
            if self.kv_cache_block_offsets is destination:
                self.kv_cache_block_offsets = tensor
        return result

    return prepare


class StagedOffsetsV1:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3) -> None:
        stagers = Stagers(mode=mode, slots=slots)
        self.copy_batch_block_offsets = partial(staged_copy, stagers)
        self.prepare = partial(staged_prepare, stagers)
