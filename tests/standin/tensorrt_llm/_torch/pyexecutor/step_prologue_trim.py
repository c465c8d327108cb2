"""Skips a copy whose payload equals the last one that was recorded for the same memory of the device."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Payload = npt.NDArray[np.int32]


class _Record(NamedTuple):
    memory: Any  # kept, so that nobody else gets its address
    region: tuple[int, tuple[int, ...]]
    payload: Payload


class UnchangedCopyFilter:
    """Trusts that what is recorded arrives, so it does not look at the device."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def unchanged(self, dst: Any, payload: Payload) -> bool:
        found = self._records.get(_address(dst))
        return found is not None and found.region == _region(dst) and np.array_equal(found.payload, payload)

    def record(self, dst: Any, payload: Payload) -> None:
        self._records[_address(dst)] = _Record(dst.untyped_storage(), _region(dst), payload.copy())

    def invalidate(self, dst: Any) -> None:
        self._records.pop(_address(dst), None)


def _address(dst: Any) -> int:
    return int(dst.untyped_storage().data_ptr())


def _region(dst: Any) -> tuple[int, tuple[int, ...]]:
    return dst.data_ptr(), tuple(dst.shape)


GLOBAL_COPY_FILTER = UnchangedCopyFilter()
