"""Digests of blocks as a step has left them: a kernel makes them where the blocks lie, and they come back by a ring.

The kernel stands behind the step on the model's own stream. It reads in pinned memory which blocks it shall digest, and
writes 8 bytes for each part of a layer there. A mark behind it says when they have arrived.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from trtllm_kvfix.canary.fills import BlockLook, Fill
from trtllm_kvfix.native import Device, DeviceError
from trtllm_kvfix.staging import MovableMark
from trtllm_kvfix.staging.in_use import keep

PART_BYTES = 32 << 10

slot_of = attrgetter("slot")


class Pool(NamedTuple):
    """Where blocks lie on the device, or their parts of some layers."""

    address: int
    slot_bytes: int
    layers: Sequence[int]  # their numbers, as they lie in a slot, one behind the other

    @property
    def parts(self) -> int:
        """Of a layer, each digested by a thread block."""
        return max(1, self.slot_bytes // len(self.layers) // PART_BYTES)


# Those that something has happened to; and the slots of live blocks with what they hold, of which there is no more to
# say: they come in every step.
Looks: TypeAlias = tuple[list[BlockLook], list[int], list[Fill]]


class Ring:
    def __init__(self, device: Device, stream: int, pools: Sequence[Pool], places: int, key: int) -> None:
        """A block has the same slot in each of the pools."""
        if not device.has_kernels:
            raise DeviceError(f"{device.name} has no kernels: they are built where nvcc is found")
        self.places = self.free = places
        self._device, self._stream = device, stream
        self._digests = [
            device.block_digests(pool.address, pool.slot_bytes, len(pool.layers), pool.parts, places, key)
            for pool in pools
        ]
        self._on_way: deque[tuple[MovableMark, int, Looks, int]] = deque()
        self._idle: list[MovableMark] = []
        self._next = 0

    def send(self, looks: Looks, step: int) -> None:
        """Digest the blocks as they are behind what the stream has been given so far. There must be room."""
        due, live_slots, _ = looks
        slots = [*map(slot_of, due), *live_slots]
        until_end = self.places - self._next
        for part in (slots,) if len(slots) <= until_end else (slots[:until_end], slots[until_end:]):
            for digests in self._digests:
                digests.launch(self._next, part, self._stream)
            self._next = (self._next + len(part)) % self.places
        self.free -= len(slots)
        mark = self._idle.pop() if self._idle else MovableMark(self._device, self._stream)
        mark.record()
        self._on_way.append((mark, len(slots), looks, step))

    def arrived(self) -> Iterator[tuple[Looks, list[bytes], int]]:
        """Looks whose digests have arrived, these by layer for each block, and the step behind which they were made."""
        while self._on_way and self._on_way[0][0].done():
            mark, count, looks, step = self._on_way.popleft()
            self._idle.append(mark)
            begin = (self._next + self.free) % self.places
            self.free += count
            until_end = min(count, self.places - begin)
            found = self._read(begin, until_end)
            if until_end < count:  # they go on at the ring's beginning
                found += self._read(0, count - until_end)
            yield looks, found, step

    def _read(self, first: int, count: int) -> list[bytes]:
        of_pools = [digests.read(first, count) for digests in self._digests]
        return of_pools[0] if len(of_pools) == 1 else [b"".join(of_block) for of_block in zip(*of_pools, strict=True)]

    def close(self) -> None:
        """The device may still use the memory: it is kept for as long."""
        if self._on_way:
            keep(self._on_way[-1][0], self._digests)
