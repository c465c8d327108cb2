"""Where the blocks of live sequences lie on the device: upstream takes slots for the numbers of blocks."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from trtllm_kvfix.native import BlockManager


class Slots:
    """The caller holds a lock around every call."""

    def __init__(self, core: BlockManager, blocks_per_sequence: int) -> None:
        self._core = core
        self._blocks_per_sequence = blocks_per_sequence
        self._block_in: dict[int, int] = {}  # of all live sequences; empty until somebody asks

    def of(self, request_ids: Sequence[int]) -> list[list[int]]:
        """Of each sequence, the slots of its blocks."""
        table = np.empty((1, max(1, len(request_ids)), 2, self._blocks_per_sequence), np.int32)
        self._core.copy_batch_block_offsets(table, request_ids, 1, 0)
        held = [len(blocks) for (blocks,) in self._core.get_batch_cache_block_ids(request_ids)]
        return [table[0, row, 0, :count].tolist() for row, count in enumerate(held)]

    def block_in(self, slot: int, live: Iterable[int]) -> int | None:
        """The block of a live sequence in this slot. It stays there as long as a sequence has it."""
        if not self._block_in:
            ids = list(live)
            blocks = chain.from_iterable(blocks for (blocks,) in self._core.get_batch_cache_block_ids(ids))
            self._block_in = dict(zip(chain.from_iterable(self.of(ids)), blocks, strict=True))
        return self._block_in.get(slot)

    def moved(self) -> None:
        """Sequences have come, grown or gone."""
        self._block_in = {}
