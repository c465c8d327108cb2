"""Seals: each travels behind a payload and holds its checksum and the name of its block.

A store may give the memory of an object that it evicts to another one while somebody reads it. What arrives then is
whole, and somebody else's: so a seal names its block.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import crc32c
from trtllm_kvfix.offload.host_tier import SEAL_BYTES

MAGIC = 0x6B76_6631
LAYOUT = struct.Struct("<IIQ16s")  # magic, CRC-32C, bytes of the payload, beginning of its key
assert LAYOUT.size == SEAL_BYTES


class Seals:
    """One in each slot of a pool, directly behind the block, so that both are one buffer to the store."""

    def __init__(self, pool: NDArray[np.uint8], block_bytes: int, slot_bytes: int) -> None:
        if slot_bytes < block_bytes + SEAL_BYTES:
            raise ValueError(f"slots of {slot_bytes} bytes have no room for {block_bytes} and a seal of {SEAL_BYTES}")
        self._pool, self._bytes = pool, pool.data
        self._block_bytes, self._slot_bytes = block_bytes, slot_bytes

    def write(self, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        for key, slot, crc in zip(keys, slots, self._checksums(slots), strict=True):
            LAYOUT.pack_into(self._bytes, self._of(slot), MAGIC, crc, self._block_bytes, key[:16])

    def clear(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._bytes[self._of(slot) : self._of(slot) + SEAL_BYTES] = bytes(SEAL_BYTES)

    def hold(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[bool]:
        """Whether each slot holds what its key stands for."""
        wanted = zip(keys, slots, self._checksums(slots), strict=True)
        return [
            LAYOUT.unpack_from(self._bytes, self._of(slot)) == (MAGIC, crc, self._block_bytes, key[:16])
            for key, slot, crc in wanted
        ]

    def _of(self, slot: int) -> int:
        return slot * self._slot_bytes + self._block_bytes

    def _checksums(self, slots: Sequence[int]) -> list[int]:
        starts = np.asarray(slots, np.uint64) * np.uint64(self._slot_bytes)
        return crc32c(self._pool, starts, self._block_bytes)
