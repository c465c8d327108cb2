"""What travels behind each payload: a checksum of it, and whose payload it is.

A store may give the memory of an object that it evicts to another one while somebody reads it. What arrives then is
whole, and somebody else's: so a seal names its block.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import crc32c

MAGIC = 0x6B76_6631
LAYOUT = struct.Struct("<IIQ16s")  # magic, CRC-32C, bytes of the payload, beginning of its key
SEAL_BYTES = LAYOUT.size


class Seals:
    """One for each slot of a pool, in memory of their own."""

    def __init__(self, pool: NDArray[np.uint8], block_bytes: int, seals: NDArray[np.uint8]) -> None:
        self._pool, self._block_bytes, self._seals = pool, block_bytes, seals.data

    def write(self, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        for key, slot, crc in zip(keys, slots, self._checksums(slots), strict=True):
            LAYOUT.pack_into(self._seals, SEAL_BYTES * slot, MAGIC, crc, self._block_bytes, key[:16])

    def clear(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._seals[SEAL_BYTES * slot : SEAL_BYTES * (slot + 1)] = bytes(SEAL_BYTES)

    def hold(self, keys: Sequence[bytes], slots: Sequence[int]) -> list[bool]:
        """Whether each slot holds what its key stands for."""
        wanted = zip(keys, slots, self._checksums(slots), strict=True)
        return [
            LAYOUT.unpack_from(self._seals, SEAL_BYTES * slot) == (MAGIC, crc, self._block_bytes, key[:16])
            for key, slot, crc in wanted
        ]

    def _checksums(self, slots: Sequence[int]) -> list[int]:
        starts = np.asarray(slots, np.uint64) * np.uint64(self._block_bytes)
        return crc32c(self._pool, starts, self._block_bytes)
