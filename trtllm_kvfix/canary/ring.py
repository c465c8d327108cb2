"""Digests of blocks as a step has left them: a kernel makes them where the blocks lie, and they come back by a ring.

The kernel stands behind the step on the model's own stream. It reads in pinned memory which blocks it shall digest, and
writes 8 bytes for each part of a layer there. A mark behind it says when they have arrived.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.canary.fills import BlockLook
from trtllm_kvfix.native import Device, DeviceError
from trtllm_kvfix.staging import MovableMark
from trtllm_kvfix.staging.in_use import keep

PART_BYTES = 32 << 10

Words = npt.NDArray[np.uint64]


class Pool(NamedTuple):
    """Where the blocks lie on the device, and of how many layers each consists, one behind the other."""

    address: int
    slot_bytes: int
    layers: int

    @property
    def layer_bytes(self) -> int:
        return self.slot_bytes // self.layers

    @property
    def parts(self) -> int:
        """Of a layer, each digested by a thread block."""
        return max(1, self.layer_bytes // PART_BYTES)


class Ring:
    def __init__(self, device: Device, stream: int, pool: Pool, places: int, key: int) -> None:
        if not device.has_kernels:
            raise DeviceError(f"{device.name} has no kernels: they are built where nvcc is found")
        self.places = self.free = places
        self._device, self._stream, self._pool, self._key = device, stream, pool, key
        self._blocks = device.pinned([places], "uint64")
        self._sums = device.pinned([places, pool.layers, pool.parts], "uint64")
        self._addresses: Words = self._blocks.array
        self._found: Words = self._sums.array
        self._on_way: deque[tuple[MovableMark, list[BlockLook], int]] = deque()
        self._idle: list[MovableMark] = []
        self._next = 0

    def send(self, looks: list[BlockLook], step: int) -> None:
        """Digest the blocks as they are behind what the stream has been given so far. There must be room."""
        until_end = self.places - self._next
        for part in (looks[:until_end], looks[until_end:]):
            if part:
                self._launch(part)
        mark = self._idle.pop() if self._idle else MovableMark(self._device, self._stream)
        mark.record()
        self._on_way.append((mark, looks, step))

    def _launch(self, looks: list[BlockLook]) -> None:
        address, slot_bytes, _ = self._pool
        first, count = self._next, len(looks)
        self._addresses[first : first + count] = [address + look.slot * slot_bytes for look in looks]
        self._next = (first + count) % self.places
        self.free -= count
        self._device.digest_blocks(
            self._blocks, first, count, self._sums, self._pool.layer_bytes, self._key, self._stream
        )

    def arrived(self) -> Iterator[tuple[BlockLook, bytes, int]]:
        """Each block whose digests have arrived, these by layer, and the step behind which they were made."""
        size = 8 * self._pool.layers
        while self._on_way and self._on_way[0][0].done():
            mark, looks, step = self._on_way.popleft()
            self._idle.append(mark)
            begin = (self._next + self.free) % self.places
            self.free += len(looks)
            found = self._found[begin : begin + len(looks)]
            if len(found) < len(looks):  # they go on at the ring's beginning
                found = np.concatenate((found, self._found[: len(looks) - len(found)]))
            # Copied at once: the device has just written it, so each line is in no cache, and a sum would wait for it.
            digests = np.add.reduce(found.copy(), axis=2).tobytes()
            for place, look in enumerate(looks):
                yield look, digests[place * size : (place + 1) * size], step

    def close(self) -> None:
        """The device may still use the memory: it is kept for as long."""
        if self._on_way:
            keep(self._on_way[-1][0], (self._blocks, self._sums))
