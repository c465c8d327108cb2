"""The device tensor as upstream's method sees it: indexing and `copy_` are ours, the rest is the tensor's own.

The methods that upstream calls here may raise only what upstream's own statement would have raised. So
`_Selection.copy_` asks the destination inside a `try`, and runs the statement itself, where one is left to run, outside
of it.
"""

from typing import Any, NamedTuple

from trtllm_kvfix.metrics import flight
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging.read_back import Shipment
from trtllm_kvfix.staging.stagers import Stagers, is_too_wide, memory_of, v1

WORD_BYTES = 4
WHOLE = slice(None)


class PoolRows(NamedTuple):
    """The first rows of one pool, and of each the first blocks."""

    pool: int
    rows: int
    width: int | None

    @property
    def place(self) -> tuple[int, slice, slice, slice]:
        return self.pool, slice(None, self.rows), WHOLE, slice(None, self.width)


class StagedDestination:
    """It serves every call that ships this table to this tensor, so what does not change is looked up once. Calls come
    from one thread at a time, as upstream's do."""

    def __init__(self, tensor: Any, table: Any, stagers: Stagers, tried: Fuse, *, lends: bool = False) -> None:
        self.tensor = tensor
        self.table = table
        self.stagers = stagers
        self.tried = tried
        self._lends = lends  # the code that fills the table calls `begin` first
        self.failed = False  # in this call: what is left of it goes by blocking copies
        self._memory = memory_of(tensor)
        self._array = table.numpy()
        self._pools, rows, planes, blocks = table.shape
        self._pool_bytes = rows * planes * blocks * WORD_BYTES
        self._address = table.data_ptr()
        self._stager = None if is_too_wide(table) else stagers.of(table, v1)
        self.parts: list[PoolRows] = []  # what has been copied and not been shipped

    def __getitem__(self, index: Any) -> "_Selection":
        return _Selection(self, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def begin(self) -> None:
        """Call before the table is filled: when this returns, nothing reads it any more. Forgets what a failed call
        left behind."""
        self.failed = False
        self.parts = []
        if self._lends:
            self.settle()

    def settle(self) -> None:
        """Take lent memory back for upstream, whichever destination it went to."""
        if self._stager is not None:
            self._stager.settle()

    def receive(self, index: Any, source: Any) -> Any:
        """If upstream copies out of the live table, take a snapshot and return None. Otherwise return the source of the
        copy, which is not written before the copy is done."""
        offset = source.data_ptr() - self._address
        if offset == 0 and self._pools == 1 and self._stager is not None and _is_plain(index):
            self._ship(index[1].stop)  # the usual case
            return None
        is_live = 0 <= offset < self._pools * self._pool_bytes
        parts = self._recognised(index, offset) if is_live else []
        if not parts:
            return source.clone() if is_live else source
        whole = self.parts + parts
        if len(whole) < self._pools:
            self.parts = whole
            return None
        self._ship_parts(whole)
        self.parts = []
        return None

    def flush(self) -> None:
        """Upstream's method has returned: ship what it copied and we have not shipped."""
        if self.parts:
            self._ship_parts(self.parts)
            self.parts = []

    def copy_rest(self) -> None:
        """Copy what `flush` has not shipped, by upstream's own statement, which returns when the copy is done."""
        parts, self.parts = self.parts, []
        for part in parts:
            self.tensor[part.place].copy_(self.table[part.place], non_blocking=False)

    def _ship(self, rows: int, width: int | None = None) -> None:
        self._stager.ship(self._memory, self._array, rows, width=width, lent=self._lends)  # type: ignore[union-attr]
        flight.note(flight.SHIPPED, rows, self._pools)
        read_back = self.stagers.read_back
        if read_back is not None and read_back.due():
            read_back.look(lambda: Shipment(self._memory, self._array[:, :rows, :, :width].copy()))

    def _ship_parts(self, parts: list[PoolRows]) -> None:
        """Pools that were copied one by one go out together; if they differ, or are too many, each by itself."""
        _, rows, width = parts[0]
        in_order = len(parts) == self._pools and all(part == (i, rows, width) for i, part in enumerate(parts))
        if self._stager is not None and in_order:
            self._ship(rows, width)
            return
        for part in parts:
            self.tensor[part.place].copy_(self.table[part.place].clone(), non_blocking=True)

    def _recognised(self, index: Any, offset: int) -> list[PoolRows]:
        return recognised(index, offset, self._pools, self._pool_bytes)


class BlockingDestination:
    """Every copy into it returns when it is done, so its source may be written again."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __getitem__(self, index: Any) -> "_Blocking":
        return _Blocking(self.tensor[index])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


class _Blocking:
    __slots__ = ("_selected",)

    def __init__(self, selected: Any) -> None:
        self._selected = selected

    def copy_(self, source: Any, non_blocking: bool = False) -> "_Blocking":
        del non_blocking
        self._selected.copy_(source, non_blocking=False)
        return self


class _Selection:
    __slots__ = ("_destination", "_index")

    def __init__(self, destination: StagedDestination, index: Any) -> None:
        self._destination = destination
        self._index = index

    def copy_(self, source: Any, non_blocking: bool = False) -> "_Selection":
        destination, left = self._destination, source
        if not destination.failed:
            try:
                left = destination.receive(self._index, source)
            except Exception as error:
                destination.tried.fault(error)
                destination.failed = True
        if left is not None:
            destination.tensor[self._index].copy_(left, non_blocking=non_blocking and not destination.failed)
        return self


class ObservedDestination:
    def __init__(self, tensor: Any, table: Any) -> None:
        self.tensor = tensor
        self.copied: list[tuple[Any, Any]] = []  # index and source of upstream's statements
        self._table = table

    def __getitem__(self, index: Any) -> "_Observed":
        return _Observed(self, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def shipment(self) -> Shipment | None:
        """Return the copies that upstream's method made, while the table still holds the intended rows.

        None if it did anything but copy the same rows of every pool to their own places.
        """
        pools, rows_max, planes, blocks = self._table.shape
        pool_bytes = rows_max * planes * blocks * WORD_BYTES
        parts = [
            part
            for index, source in self.copied
            for part in recognised(index, source.data_ptr() - self._table.data_ptr(), pools, pool_bytes)
        ]
        if not parts or parts != [PoolRows(pool, *parts[0][1:]) for pool in range(pools)]:
            return None
        _, rows, width = parts[0]
        return Shipment(memory_of(self.tensor), self._table.numpy()[:, :rows, :, :width].copy())


class _Observed:
    __slots__ = ("_destination", "_index")

    def __init__(self, destination: ObservedDestination, index: Any) -> None:
        self._destination = destination
        self._index = index

    def copy_(self, source: Any, non_blocking: bool = False) -> "_Observed":
        destination = self._destination
        destination.tensor[self._index].copy_(source, non_blocking=non_blocking)
        destination.copied.append((self._index, source))
        return self


def recognised(index: Any, offset: int, pools: int, pool_bytes: int) -> list[PoolRows]:
    """The parts of a table that go to their own places, where `index` is [pool, :rows] or [pool, :rows, :, :width]."""
    if not isinstance(index, tuple) or len(index) not in (2, 3, 4):
        return []
    pool, rows, *rest = index
    planes, blocks = (*rest, WHOLE, WHOLE)[:2]
    if not (_is_head(rows) and _is_head(blocks) and planes == WHOLE) or rows.stop is None:
        return []
    if isinstance(pool, int):
        return [PoolRows(pool, rows.stop, blocks.stop)] if offset == pool * pool_bytes else []
    if pool != WHOLE or offset != 0:
        return []
    return [PoolRows(each, rows.stop, blocks.stop) for each in range(pools)]


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
