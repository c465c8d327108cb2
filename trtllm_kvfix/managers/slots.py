"""Slots of live sequences' blocks on the device. For upstream, a block's number is its slot."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix.managers.layout import Layout, Window
from trtllm_kvfix.native import BlockManager

Table = npt.NDArray[np.int32]


class Slots:
    """The caller holds a lock around every call."""

    def __init__(self, core: BlockManager, layout: Layout) -> None:
        self._core = core
        self._layout = layout
        self._output: Any = None
        self._rows_of_pools: list[Any] = []
        self._block_in: dict[tuple[int, int], int] = {}  # of all live sequences; empty until it is needed

    # ---- as attention reads them ----

    def write_offsets(self, output: Any, request_ids: Sequence[int], beam_width: int, offset: int) -> None:
        pools = self._layout.pools
        if self._layout.slides:
            table, rows = self._table(request_ids), slice(offset, offset + len(request_ids))
            for part, pool in zip(self._rows_of(output), pools, strict=True):
                part[0, rows, 0] = table[pool.window.index] * pool.offset_scale
                part[0, rows, 1] = part[0, rows, 0] + pool.kv_factor - 1
            return
        for part, pool in zip(self._rows_of(output), pools, strict=True):
            self._core.copy_batch_block_offsets(
                part, request_ids, beam_width, offset, scale=pool.offset_scale, v_offset=pool.kv_factor - 1
            )

    def _rows_of(self, output: Any) -> list[Any]:
        """Each pool's part of the table, as the core writes it. Upstream has one table and passes it every time."""
        if output is not self._output:
            array = output.numpy() if hasattr(output, "numpy") else output
            self._output, self._rows_of_pools = output, [array[i : i + 1] for i in range(len(self._layout.pools))]
        return self._rows_of_pools

    def _table(self, request_ids: Sequence[int]) -> Table:
        """[window, sequence, block]. A block that has left its window is replaced by the first one that has not.

        Kernels may load a whole tile and mask what is outside the window, so the table must hold valid numbers.
        """
        rows = max(1, len(request_ids))
        table = np.zeros((len(self._layout.windows), rows, 2, self._layout.blocks_per_sequence), np.int32)
        self._core.copy_batch_block_offsets(table, request_ids, 1, 0)
        slots = table[:, : len(request_ids), 0]
        if self._layout.slides:
            first = np.take_along_axis(slots, (slots >= 0).argmax(axis=2, keepdims=True), axis=2)
            slots = np.where(slots < 0, first, slots)
        return slots

    # ---- as others name blocks ----

    def of(self, request_ids: Sequence[int], window: Window) -> list[list[int]]:
        """The slots of each sequence's blocks."""
        held = [len(blocks) for (blocks,) in self._core.get_batch_cache_block_ids(request_ids, window.name)]
        table = self._table(request_ids)[window.index]
        return [row[:count].tolist() for row, count in zip(table, held, strict=True)]

    def block_in(self, slot: int, window: Window, live: Iterable[int]) -> int | None:
        """The block in this slot, which belongs to a live sequence and stays there as long as one has it."""
        if not self._block_in:
            ids = list(live)
            for each in self._layout.windows:
                found = self._core.get_batch_cache_block_ids(ids, each.name)
                for slots, (blocks,) in zip(self.of(ids, each), found, strict=True):
                    named = zip(slots, blocks, strict=True)
                    self._block_in |= {(each.index, place): block for place, block in named if block >= 0}
        return self._block_in.get((window.index, slot))

    def moved(self) -> None:
        """Called when sequences have come, grown or gone."""
        self._block_in = {}
