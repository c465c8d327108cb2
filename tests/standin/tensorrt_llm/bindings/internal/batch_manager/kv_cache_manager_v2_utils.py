"""The index mapper and the kernel of V2 (surface 2.2, 2.3)."""

from collections.abc import Sequence
from typing import Any

from ...._standin.nanobind import NbFunction
from ...._standin.tensors import tensors
from ...._standin.variant import MANGLED, since


class IndexMapper:
    """Which row of the table a request has. No binding of it releases the GIL."""

    def __init__(self, max_batch_size: int, max_beam_width: int) -> None:
        self._max_beam_width = max_beam_width
        self._free = list(range(max_batch_size))  # ordered: a freed row goes to the very next request
        self._index: dict[int, int] = {}
        # One buffer for all answers: the next call overwrites what this one returned (hazard H2).
        self._copy_index = tensors().pinned(max_batch_size * max_beam_width)

    def add_new_sequence(self, request_id: int) -> int:
        assert request_id not in self._index
        self._index[request_id] = self._free.pop(0)
        return self._index[request_id]

    def get_index(self, request_id: int) -> int:
        return self._index[request_id]

    def remove_sequence(self, request_id: int) -> None:
        self._free.append(self._index.pop(request_id))
        self._free.sort()

    def get_copy_index(self, request_ids: Sequence[int], num_context: int, beam_width: int) -> Any:
        rows: list[int] = []
        for position, request_id in enumerate(request_ids):
            first = self._index[request_id] * self._max_beam_width
            rows += range(first, first + (1 if position < num_context else beam_width))
        self._copy_index.numpy()[: len(rows)] = rows
        return self._copy_index[: len(rows)]

    if since("F"):

        def size(self) -> int:
            return len(self._index)

        def num_free_slots(self) -> int:
            return len(self._free)

        def gather_k_block_offsets(
            self, source: Any, destination: Any, request_ids: Sequence[int], num_blocks: int
        ) -> None:
            """Copies the K plane on the CPU, at the call, and leaves the copy index alone."""
            for row, request_id in enumerate(request_ids):
                index = self._index[request_id] * self._max_beam_width
                destination.numpy()[:, row, 0, :num_blocks] = source.numpy()[:, index, 0, :num_blocks]


def _with_v_index(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int) -> None:
    """Before scales: pages as they are; V the same, or the next. (Upstream leaves a bad page -1; this writes 0.)"""
    pools = output.shape[0]
    v_offset = [0 if copy_v_idx else 1] * pools
    tensors().gather_rows(output, input, copy_index, len(copy_index), [1] * pools, v_offset, stream)


def _with_scales(input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, stream: int) -> None:
    """K = scale * page, V = K + kv_offset, and 0 for a bad page. Reads host memory when it runs."""
    scales, offsets = index_scales.tolist(), kv_offset.tolist()
    tensors().gather_rows(output, input, copy_index, len(copy_index), scales, offsets, stream)


def _mangled(plan: Any, output: Any, stream: int) -> None:
    """A later upstream that nobody has read: the same work behind another signature."""
    _with_scales(plan.table, output, plan.copy_index, plan.index_scales, plan.kv_offset, stream)


_TENSOR = "numpy.ndarray[dtype=int32]"
if MANGLED:
    copy_batch_block_offsets_to_device = NbFunction(_mangled, f"(plan: object, output: {_TENSOR}, stream: int) -> None")
elif since("B2"):
    copy_batch_block_offsets_to_device = NbFunction(
        _with_scales,
        f"(input: {_TENSOR}, output: {_TENSOR}, copy_index: {_TENSOR}, index_scales: {_TENSOR}, "
        f"kv_offset: {_TENSOR}, stream: int) -> None",
    )
else:
    copy_batch_block_offsets_to_device = NbFunction(
        _with_v_index,
        f"(input: {_TENSOR}, output: {_TENSOR}, copy_index: {_TENSOR}, copy_v_idx: bool, stream: int) -> None",
    )
