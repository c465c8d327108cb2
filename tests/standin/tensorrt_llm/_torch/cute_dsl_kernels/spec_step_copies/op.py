"""One launch for the copies of a step; this much of it copies block offsets, out of the live table."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ...._standin.tensors import tensors

MAX_BLOCK_COPIES = 2


class StepInputStage:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.max_block_copies = MAX_BLOCK_COPIES
        self._block_copies: list[Callable[[int], None]] = []

    def begin(self) -> None:
        self._block_copies = []

    def block_copy(self, offsets: Any, table: Any, copy_index: Any, index_scales: Any, kv_offset: Any) -> bool:
        """Only notes where they are. False: not covered, and the caller launches the native copy."""
        if offsets.shape[3] != table.shape[3] or len(self._block_copies) == self.max_block_copies:
            return False
        factors = (index_scales.tolist(), kv_offset.tolist())
        self._block_copies.append(partial(tensors().gather_rows, offsets, table, copy_index, len(copy_index), *factors))
        return True

    def commit(self) -> None:
        """A kernel that reads table and copy index when it runs."""
        for copy in self._block_copies:
            copy(tensors().current_stream().cuda_stream)
        self.begin()
