"""Skips a copy whose payload equals the last one that was recorded for the same memory of the device."""

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._standin.tensors import tensors

Payload = npt.NDArray[np.int32]


class StepPrologueTrimVerifyError(RuntimeError):
    pass


class _Mode:
    name = "1"


def reload_mode() -> str:
    """The variable is read at the import, and here."""
    _Mode.name = os.environ.get("TRTLLM_STEP_PROLOGUE_TRIM", "1")
    return _Mode.name


reload_mode()


def step_prologue_trim_enabled() -> bool:
    return _Mode.name != "0"


def step_prologue_trim_verify() -> bool:
    return _Mode.name == "verify"


class _Record(NamedTuple):
    memory: Any  # kept, so that nobody else gets its address
    region: tuple[int, tuple[int, ...]]
    payload: Payload


class UnchangedCopyFilter:
    """Trusts that what is recorded arrives, so it does not look at the device; only in its check does it."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._found: dict[int, Payload] = {}  # on the device, before a copy that would have been skipped

    def unchanged(self, dst: Any, payload: Payload) -> bool:
        found = self._records.get(_address(dst)) if step_prologue_trim_enabled() else None
        if found is None or found.region != _region(dst) or not np.array_equal(found.payload, payload):
            return False
        if not step_prologue_trim_verify():
            return True
        self._found[_address(dst)] = _on_device(dst)
        return False

    def record(self, dst: Any, payload: Payload) -> None:
        found = self._found.pop(_address(dst), None)
        if found is not None and not np.array_equal(found, _on_device(dst)):
            raise StepPrologueTrimVerifyError("a copy that would be skipped has changed the device")
        if step_prologue_trim_enabled():
            self._records[_address(dst)] = _Record(dst.untyped_storage(), _region(dst), payload.copy())

    def invalidate(self, dst: Any) -> None:
        self._records.pop(_address(dst), None)
        self._found.pop(_address(dst), None)


def _address(dst: Any) -> int:
    return int(dst.untyped_storage().data_ptr())


def _region(dst: Any) -> tuple[int, tuple[int, ...]]:
    return dst.data_ptr(), tuple(dst.shape)


def _on_device(dst: Any) -> Payload:
    """Behind all that the current stream has been given: the caller launches on it."""
    host = tensors().pinned(*dst.shape)
    host.copy_(dst)
    return np.array(host.numpy())


GLOBAL_COPY_FILTER = UnchangedCopyFilter()
