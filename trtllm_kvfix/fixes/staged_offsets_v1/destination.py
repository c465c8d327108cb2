"""The device tensor as upstream's method sees it: indexing and `copy_` are ours, the rest is the tensor's own.

What upstream calls here may raise only what its own statement would have raised. So a failure of ours is caught, and
the statement runs as it is, outside of the `try`.
"""

from typing import Any, NamedTuple

from trtllm_kvfix.native import PoolCopies
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging.place import stream_for
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


class StagedDestination(PoolCopies):
    """It serves every call that ships this table to this tensor, from one thread at a time, as upstream's calls come.

    The copies that upstream is known to make are taken natively, and go out together. All others come to `otherwise`.
    """

    def __init__(self, tensor: Any, table: Any, stagers: Stagers, tried: Fuse, *, lends: bool = False) -> None:
        stager = None if is_too_wide(table) else stagers.of(table, v1)
        super().__init__(tensor, table, stager, stream_for(tensor), tried, lends=lends)
        self.stagers = stagers
        self.tried = tried

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def otherwise(self, index: Any, source: Any, non_blocking: bool) -> None:
        """A copy that was not taken: out of the live table, it needs a source that nobody writes meanwhile."""
        left = source
        if not self.failed:
            try:
                self.raise_failure()
                self.flush()
                if 0 <= source.data_ptr() - self.table.data_ptr() < self.table.numel() * WORD_BYTES:
                    left = source.clone()
            except Exception as error:
                self.tried.fault(error)
                self.fail()
        self.tensor[index].copy_(left, non_blocking=non_blocking and not self.failed)

    def flush(self) -> None:
        """Copies of some pools have been taken and not of the others: each goes out by itself."""
        for place in self._places_left():
            self.tensor[place].copy_(self.table[place].clone(), non_blocking=True)
        self.drop_taken()

    def copy_rest(self) -> None:
        """Copy what has not been shipped by upstream's own statement, which returns when the copy is done."""
        places = self._places_left()
        self.drop_taken()
        for place in places:
            self.tensor[place].copy_(self.table[place], non_blocking=False)

    def _places_left(self) -> list[Any]:
        pools, rows, width = self.taken
        return [PoolRows(pool, rows, width).place for pool in range(pools)]

    def read_back(self) -> None:
        """After a call: perhaps look at what it has shipped."""
        read_back = self.stagers.read_back
        if read_back is None or self.shipped is None or not read_back.due():
            return
        rows, width = self.shipped
        read_back.look(lambda: Shipment(memory_of(self.tensor), self.table.numpy()[:, :rows, :, :width].copy()))


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
