"""V2's path for sliding windows with scratch pages: whole tables and staging buffers, all copied late (surface 2.3).

Three more host buffers that every call refills in place. Upstream's compiled op takes them, and the table's copy on
the device, to page indices per layer; the stand-in's takes the table's copy alone and leaves the rest for the tests.
"""

from collections.abc import Sequence
from typing import Any

from ..tensors import tensors

SCRATCH_SLOTS_MAX = 2


def allocate(self: Any, rows: int) -> None:
    self._device_kv_cache_block_offsets_input = tensors().readable_on_device(*self.host_kv_cache_block_offsets.shape)
    self._device_copy_idx_staging = tensors().readable_on_device(rows)
    self._host_scratch_begs_staging = tensors().pinned(self.num_pools, rows)
    self._host_scratch_ends_staging = tensors().pinned(self.num_pools, rows)
    self._host_scratch_slots_staging = tensors().pinned(self.num_pools, rows, SCRATCH_SLOTS_MAX)
    self._device_scratch_begs_staging = tensors().on_device(self.num_pools, rows)
    self._device_scratch_ends_staging = tensors().on_device(self.num_pools, rows)
    self._device_scratch_slots_staging = tensors().on_device(self.num_pools, rows, SCRATCH_SLOTS_MAX)


def copy_idx_to_device(self: Any, copy_idx: Any) -> Any:
    self._device_copy_idx_staging[: copy_idx.size(0)].copy_(copy_idx, non_blocking=True)
    return self._device_copy_idx_staging


def copy_scratch_metadata_to_device(self: Any, request_ids: Sequence[int], num_contexts: int) -> tuple[Any, Any, Any]:
    for pool in range(self.num_pools):
        for row, request_id in enumerate(request_ids[:num_contexts]):
            beg, end, slots = self.kv_cache_map[request_id].get_scratch_desc(pool)
            self._host_scratch_begs_staging.numpy()[pool, row] = beg
            self._host_scratch_ends_staging.numpy()[pool, row] = end
            self._host_scratch_slots_staging.numpy()[pool, row] = slots
    self._device_scratch_begs_staging.copy_(self._host_scratch_begs_staging, non_blocking=True)
    self._device_scratch_ends_staging.copy_(self._host_scratch_ends_staging, non_blocking=True)
    self._device_scratch_slots_staging.copy_(self._host_scratch_slots_staging, non_blocking=True)
    return (
        self._device_scratch_begs_staging,
        self._device_scratch_ends_staging,
        self._device_scratch_slots_staging,
    )


def copy_batch_block_offsets_per_layer(
    self: Any, dst_tensor: Any, request_ids: Sequence[int], copy_idx: Any, num_contexts: int, num_seqs: int
) -> None:
    device_copy_idx = self._copy_idx_to_device(copy_idx)
    self._device_kv_cache_block_offsets_input.copy_(self.host_kv_cache_block_offsets, non_blocking=True)
    self._copy_scratch_metadata_to_device(request_ids, num_contexts)
    tensors().gather_rows(
        dst_tensor,
        self._device_kv_cache_block_offsets_input,
        device_copy_idx,
        num_seqs,
        self.index_scales.tolist(),
        self.kv_offset.tolist(),
        tensors().current_stream().cuda_stream,
    )
