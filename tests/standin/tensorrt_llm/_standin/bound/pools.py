"""The bytes behind the books: two tiers of blocks, and the streams that copy between them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..tensors import tensors


def parts_of(cache_type: Any) -> int:
    """Keys and values, or keys alone."""
    return 1 if cache_type is not None and cache_type.name == "SELFKONLY" else 2


class Pools:
    """A block has upstream's dimensions: layers, keys and values, and what one layer keeps of it.

    Upstream's last dimension has heads in it, too. Here a token has one word for its key and one for its value.
    """

    def __init__(self, *, block_shape: tuple[int, int, int], primary: int, secondary: int, stream: int) -> None:
        self._tensors = tensors()
        self._buffer_stream = self._tensors.external_stream(stream)  # the BufferManager's (surface 1.2)
        self._transfer_stream = self._tensors.stream()
        self._transferred = self._tensors.event()
        self._pending = False
        self.primary = self._tensors.on_device(primary, *block_shape)
        self.secondary = self._tensors.pinned(max(1, secondary), *block_shape)
        self._has_secondary = secondary > 0

    def run(self, transfers: Iterable[tuple[str, int, int, int]]) -> None:
        """Each a kind, a source, a target, and how many tokens of the block: fewer where it is reused in part."""
        batch = list(transfers)
        if not batch:
            return
        with self._tensors.on(self._transfer_stream):
            for kind, source, target, count in batch:
                dst = self.secondary if kind == "offload" else self.primary
                src = self.secondary if kind == "onboard" else self.primary
                _copy(dst[target], src[source], count)
            self._transferred.record()
        self._pending = True

    def pointers(self) -> Any:
        """One pool: where it lies on the device, and on the host or 0."""
        secondary = self.secondary.data_ptr() if self._has_secondary else 0
        return np.array([[self.primary.data_ptr(), secondary]], np.int64)

    def transfers_follow_buffers(self) -> None:
        self._transfer_stream.wait_stream(self._buffer_stream)

    def buffers_follow_transfers(self) -> None:
        """A step's input copies wait for this. The CPU waits for nothing (surface 4.4)."""
        if self._pending:
            self._buffer_stream.wait_event(self._transferred)
            self._pending = False

    def close(self) -> None:
        self._transfer_stream.synchronize()


def _copy(dst: Any, src: Any, count: int) -> None:
    """A block that is reused in part is copied only as far as its tokens match: they lie apart, layer by layer."""
    layers, parts, tokens = dst.shape
    if count == tokens:
        dst.copy_(src, non_blocking=True)
        return
    for layer in range(layers):
        for part in range(parts):
            dst[layer, part, :count].copy_(src[layer, part, :count], non_blocking=True)
