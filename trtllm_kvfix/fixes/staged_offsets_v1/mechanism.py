"""V1 block offsets: upstream fills its persistent table as ever, and what it would copy from there is staged (H1).

Upstream's own code runs, with a destination of ours in the place of the device tensor. So whatever a version does about
beams, cross attention or widths stays as it is, and only these statements change their meaning:

    dst[pool, :num_seqs].copy_(table[pool, :num_seqs], non_blocking=True)  # reads the table when the stream gets there
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from trtllm_kvfix.staging.stagers import Stagers, is_too_wide, memory_of, v1

WORD_BYTES = 4


class _Part(NamedTuple):
    """The first rows of one pool, and of each the first blocks."""

    pool: int
    rows: int
    width: int | None


class StagedDestination:
    """The device tensor as upstream's method sees it: indexing and `copy_` are ours, the rest is the tensor's own.

    It serves every call that ships this table to this tensor, so what does not change is looked up once. Calls come
    from one thread at a time, as upstream's do.
    """

    def __init__(self, tensor: Any, table: Any, stagers: Stagers, *, lends: bool = False) -> None:
        self.tensor = tensor
        self.table = table
        self.stagers = stagers
        self._lends = lends  # whoever fills the table calls `begin` first
        self._memory = memory_of(tensor)
        self._array = table.numpy()
        self._pools, rows, planes, blocks = table.shape
        self._pool_bytes = rows * planes * blocks * WORD_BYTES
        self._address = table.data_ptr()
        self._stager = None if is_too_wide(table) else stagers.of(table, v1)
        self._parts: list[_Part] = []  # what has been copied and not been shipped

    def __getitem__(self, index: Any) -> "_Selection":
        return _Selection(self, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def receive(self, index: Any, source: Any, non_blocking: bool) -> None:
        """Where upstream copies out of the live table, ship a snapshot; the rest goes through, but never racing."""
        offset = source.data_ptr() - self._address
        if offset == 0 and self._pools == 1 and self._stager is not None and _is_plain(index):
            rows = index[1].stop  # the usual case, without more ado
            self._stager.ship(self._memory, self._array, rows, lent=self._lends)
            return
        is_live = 0 <= offset < self._pools * self._pool_bytes
        parts = self._recognised(index, offset) if is_live else []
        if not parts:
            self.tensor[index].copy_(source.clone() if is_live else source, non_blocking=non_blocking)
            return
        self._parts += parts
        if len(self._parts) == self._pools:
            self.flush()

    def begin(self) -> None:
        """Before the table is filled: nothing reads it any more. Forget what a call that failed left behind."""
        if self._lends and self._stager is not None:
            self._stager.settle()
        if self._parts:
            self._parts.clear()

    def flush(self) -> None:
        """Pools that were copied one by one go out together; if they differ, or are too many, each by itself."""
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        _, rows, width = parts[0]
        in_order = len(parts) == self._pools and all(part == (i, rows, width) for i, part in enumerate(parts))
        if self._stager is not None and in_order:
            self._stager.ship(self._memory, self._array, rows, width=width, lent=self._lends)
            return
        for pool, rows, width in parts:
            index = (pool, slice(None, rows), slice(None), slice(None, width))
            self.tensor[index].copy_(self.table[index].clone(), non_blocking=True)

    def _recognised(self, index: Any, offset: int) -> list[_Part]:
        """The parts that go to their own places, where `index` is [pool, :rows] or [pool, :rows, :, :width]."""
        if not isinstance(index, tuple) or len(index) not in (2, 3, 4):
            return []
        pool, rows, *rest = index
        planes, blocks = (*rest, WHOLE, WHOLE)[:2]
        if not (_is_head(rows) and _is_head(blocks) and planes == WHOLE) or rows.stop is None:
            return []
        if isinstance(pool, int):
            return [_Part(pool, rows.stop, blocks.stop)] if offset == pool * self._pool_bytes else []
        if pool != WHOLE or offset != 0:
            return []
        return [_Part(each, rows.stop, blocks.stop) for each in range(self._pools)]


WHOLE = slice(None)


def _is_head(index: Any) -> bool:
    return isinstance(index, slice) and index.start is None and index.step is None


def _is_plain(index: Any) -> bool:
    """[0, :rows] or [:, :rows], with a number of rows."""
    return (
        type(index) is tuple
        and len(index) == 2
        and (index[0] == 0 or index[0] == WHOLE)
        and _is_head(index[1])
        and index[1].stop is not None
    )


class _Selection:
    __slots__ = ("_destination", "_index")

    def __init__(self, destination: StagedDestination, index: Any) -> None:
        self._destination = destination
        self._index = index

    def copy_(self, source: Any, non_blocking: bool = False) -> "_Selection":
        self._destination.receive(self._index, source, non_blocking)
        return self


# On the owner of a table: what it has shipped to, by the identity of the tensor. Goes with the owner.
SHIPPED_TO = "_kvfix_shipped_to"


def _destination(owner: Any, tensor: Any, table: Any, stagers: Stagers, *, lends: bool) -> StagedDestination:
    known: dict[int, StagedDestination] = vars(owner).setdefault(SHIPPED_TO, {})
    found = known.get(id(tensor))
    if found is None or found.tensor is not tensor or found.table is not table or found.stagers is not stagers:
        found = known[id(tensor)] = StagedDestination(tensor, table, stagers, lends=lends)
    found.begin()
    return found


def staged_copy(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of a manager that owns its table. What follows `dst_tensor` is upstream's business.

    Nobody but this method fills the table, so it is lent to the copy until the method is called again.
    """

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        destination = _destination(self, dst_tensor, self.host_kv_cache_block_offsets, stagers, lends=True)
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
        destination = _destination(self, tensor, table, stagers, lends=False)
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
