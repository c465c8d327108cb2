"""The index mapper and the kernel of V2 (surface 2.2, 2.3)."""

from typing import Any

from ...._standin.extension import era
from ...._standin.nanobind import NbFunction
from ...._standin.tensors import tensors
from ...._standin.variant import MANGLED, since

IndexMapper: Any = era.IndexMapper  # no binding of it releases the GIL


def _with_v_index(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int, /) -> None:
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


_NAME = "copy_batch_block_offsets_to_device"
_TENSOR = "numpy.ndarray[dtype=int32]"
if MANGLED:
    copy_batch_block_offsets_to_device = NbFunction(_mangled, f"(plan: object, output: {_TENSOR}, stream: int) -> None")
elif since("B2"):
    copy_batch_block_offsets_to_device = NbFunction(
        _with_scales,
        f"(input: {_TENSOR}, output: {_TENSOR}, copy_index: {_TENSOR}, index_scales: {_TENSOR}, "
        f"kv_offset: {_TENSOR}, stream: int) -> None",
        name=_NAME,
    )
else:
    copy_batch_block_offsets_to_device = NbFunction(
        _with_v_index,
        f"(input: {_TENSOR}, output: {_TENSOR}, copy_index: {_TENSOR}, copy_v_idx: bool, stream: int) -> None",
        name=_NAME,
    )
