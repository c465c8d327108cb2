"""A double of the CUDA driver for copies that are asked to read their source during the call."""

import ctypes
from collections.abc import Mapping
from typing import Any, ClassVar

from trtllm_kvfix.hazards.h13_ephemeral_sources.device import DURING_API_CALL, NEWER, OLDER
from trtllm_kvfix.native import Device, PinnedArray

LATE_FROM = 128 * 1024  # bytes, as measured on a GPU
REFUSED = 1  # CUDA_ERROR_INVALID_VALUE
CONTEXTS: Mapping[str, str] = {"cuStreamGetCtx": "context", "cuCtxPushCurrent_v2": "push", "cuCtxPopCurrent_v2": "pop"}


class BatchDriver:
    """Over the simulated device, whose copies refuse pageable memory as they should, so they read snapshots of it.

    A snapshot is taken during the call, behind a wait if the driver waits. From a size on it is taken late: once more
    when a gate is opened.
    """

    names: ClassVar[Mapping[str, str]] = {**CONTEXTS, NEWER: "copy"}

    def __init__(self, device: Device, *, late_from: float = LATE_FROM, waits: bool = False) -> None:
        self._device = device
        self._late_from = late_from
        self._waits = waits
        self._kept: list[PinnedArray] = []
        self._queued: list[tuple[int, int, int]] = []  # snapshot, source, bytes
        self.pushed = 0

    def __getattr__(self, name: str) -> Any:
        if name not in self.names:
            raise AttributeError(name)
        return getattr(self, self.names[name])

    def gate_opens(self) -> None:
        """Call it before one is opened: what is behind it has not run yet, and runs now."""
        for snapshot, src, nbytes in self._queued:
            if nbytes >= self._late_from:
                ctypes.memmove(snapshot, src, nbytes)
        self._queued.clear()

    def context(self, stream: Any, context: Any) -> int:
        context._obj.value = stream.value
        return 0

    def push(self, context: Any) -> int:
        self.pushed += bool(context.value)
        return 0

    def pop(self, context: Any) -> int:
        self.pushed -= bool(context)
        return 0

    def copy(self, *arguments: Any) -> int:
        dst, src, nbytes, count, attributes, first, sets, stream = arguments
        assert (count.value, first._obj.value, sets.value, self.pushed) == (1, 0, 1, 1)
        assert attributes._obj.source_order == DURING_API_CALL
        if self._waits:
            self._device.synchronize(stream.value)
        snapshot = self._device.pinned((nbytes._obj.value,), "uint8")
        self._kept.append(snapshot)
        self._queued.append((snapshot.address, src._obj.value, snapshot.nbytes))
        ctypes.memmove(*self._queued[-1])
        self._device.copy(dst._obj.value, snapshot.address, snapshot.nbytes, stream.value)
        return 0


class OlderDriver(BatchDriver):
    """Of CUDA 12.8: it has the function under its first name, with one argument more."""

    names: ClassVar[Mapping[str, str]] = {**CONTEXTS, OLDER: "older_copy"}

    def older_copy(self, *arguments: Any) -> int:
        *before, _failed, stream = arguments
        return self.copy(*before, stream)


class RefusingDriver(BatchDriver):
    def copy(self, *arguments: Any) -> int:
        assert arguments
        return REFUSED
