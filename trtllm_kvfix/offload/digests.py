"""Digests of stored blocks, compared with what a load brought: they show stray writes to the host tier.

A digest costs the executor's thread a pass over the block, so digests are off unless an operator looks for an error.
"""

from collections.abc import Sequence
from typing import Literal

from trtllm_kvfix.native import HostPool

SAMPLE = 16  # one slot in so many


class Digests:
    def __init__(self, pool: HostPool, verify: Literal["off", "sample", "all"]) -> None:
        self._pool = pool
        self._every = {"off": 0, "sample": SAMPLE, "all": 1}[verify]
        self._of_slot: dict[int, int] = {}

    def note(self, slots: Sequence[int]) -> None:
        """Take the digests of slots that have just been filled."""
        chosen = self._chosen(slots)
        self._of_slot.update(zip(chosen, self._pool.digests(chosen), strict=True))

    def differing(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Return those of the slots just read whose contents have changed since they were filled."""
        known = [slot for slot in self._chosen(slots) if slot in self._of_slot]
        found = self._pool.digests(known)
        return tuple(slot for slot, one in zip(known, found, strict=True) if one != self._of_slot[slot])

    def _chosen(self, slots: Sequence[int]) -> list[int]:
        return [slot for slot in slots if slot % self._every == 0] if self._every else []
