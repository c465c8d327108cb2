"""Blocks that upstream holds by number beyond the life of their request: transfers pin, and unpin when they have ended.

Upstream's numbers of blocks are slots where the manager is ours. A pinned block keeps its slot, so the slot names it
until it is unpinned.
"""

from collections.abc import Sequence

from trtllm_kvfix.native import BlockManager


class Pins:
    """The caller holds a lock around every call."""

    def __init__(self, core: BlockManager) -> None:
        self._core = core
        self._block_in: dict[int, int] = {}  # slot in primary -> block, for all blocks that are pinned here
        self._count: dict[int, int] = {}  # by slot: the pins that have not been released
        self._chains: dict[int, list[list[int]]] = {}  # by last slot: what was pinned with it

    def pin(self, request_id: int) -> list[int]:
        """Pin every block of a live sequence. Returns their slots, that of the first block first."""
        blocks = [block for block in self._core.get_cache_block_ids(request_id)[0] if block >= 0]
        slots = [slot for slot, _ in self._core.pin_blocks_by_id(blocks)]
        for slot, block in zip(slots, blocks, strict=True):
            self._block_in[slot] = block
            self._count[slot] = self._count.get(slot, 0) + 1
        return slots

    def chain(self, slots: list[int]) -> int | None:
        """The name of the blocks that one call pinned, for builds that name them by the last one."""
        if not slots:
            return None
        self._chains.setdefault(slots[-1], []).append(slots)
        return slots[-1]

    def unpin(self, slots: Sequence[int]) -> None:
        """End one pin of each block. All or nothing."""
        unknown = [slot for slot in slots if slot not in self._block_in]
        if unknown:
            raise ValueError(f"unpin_blocks_by_id: blocks {unknown} are not pinned here; were they unpinned before?")
        self._core.unpin_blocks_by_id([self._block_in[slot] for slot in slots], tier="primary")
        for slot in slots:
            self._count[slot] -= 1
            if not self._count[slot]:
                del self._count[slot], self._block_in[slot]

    def unpin_chain(self, last: int) -> None:
        """End the pins that were made last under this name."""
        chains = self._chains.get(last)
        if not chains:
            raise ValueError(f"unpin_blocks_by_id: nothing is pinned under block {last}; was it unpinned before?")
        self.unpin(chains[-1])
        chains.pop()
        if not chains:
            del self._chains[last]
