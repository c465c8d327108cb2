"""Upstream's own copies, and for one call in so many a look at what arrived. Nothing is staged.

For such a call upstream gets a destination of ours, which runs every statement as it is and notes what it copied.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from trtllm_kvfix.fixes.staged_offsets_v1.destination import WORD_BYTES, Part, recognised
from trtllm_kvfix.staging.read_back import ReadBack, Shipment
from trtllm_kvfix.staging.stagers import memory_of


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
        if not parts or parts != [Part(pool, *parts[0][1:]) for pool in range(pools)]:
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


def observed_copy(read_back: ReadBack, original: Callable[..., Any]) -> Callable[..., Any]:
    """For `copy_batch_block_offsets` of a manager that owns its table."""

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen = read_back.guarded(lambda: ObservedDestination(dst_tensor, self.host_kv_cache_block_offsets))
        if seen is None:
            return original(self, dst_tensor, *args, **kwargs)
        result = original(self, seen, *args, **kwargs)
        read_back.look(seen.shipment)
        return result

    return copy_batch_block_offsets


def observed_prepare(read_back: ReadBack, original: Callable[..., Any]) -> Callable[..., Any]:
    """For `prepare` of attention metadata that owns the table and the copy."""

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = getattr(self, "kv_cache_block_offsets", None)
        table = getattr(self, "host_kv_cache_block_offsets", None)
        if tensor is None or table is None:
            return original(self, *args, **kwargs)
        seen = read_back.guarded(lambda: ObservedDestination(tensor, table))
        if seen is None:
            return original(self, *args, **kwargs)
        self.kv_cache_block_offsets = seen
        try:
            result = original(self, *args, **kwargs)
        finally:
            if self.kv_cache_block_offsets is seen:
                self.kv_cache_block_offsets = tensor
        read_back.look(seen.shipment)
        return result

    return prepare


class ObservedOffsetsV1:
    """The replacements, sharing what they have read back."""

    def __init__(self, read_back: ReadBack) -> None:
        self.copy_batch_block_offsets = partial(observed_copy, read_back)
        self.prepare = partial(observed_prepare, read_back)
