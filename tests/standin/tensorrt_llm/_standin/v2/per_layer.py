"""V2's path for sliding windows with scratch pages: three more host buffers that every call refills (surface 2.3).

Upstream's compiled op takes them, and the table's copy on the device, to page indices per layer; the stand-in's takes
the table's copy alone and leaves the rest for the tests.
"""

from collections.abc import Sequence
from typing import Any

from ..tensors import tensors

SCRATCH_SLOTS_MAX = 2


class PerLayerBuffers:
    num_pools: int
    kv_cache_map: dict[int, Any]
    host_kv_cache_block_offsets: Any

    def allocate_per_layer(self, rows: int) -> None:
        self._device_kv_cache_block_offsets_input = tensors().readable_on_device(
            *self.host_kv_cache_block_offsets.shape
        )
        self._device_copy_idx_staging = tensors().readable_on_device(rows)
        self._host_scratch_begs_staging = tensors().pinned(self.num_pools, rows)
        self._host_scratch_ends_staging = tensors().pinned(self.num_pools, rows)
        self._host_scratch_slots_staging = tensors().pinned(self.num_pools, rows, SCRATCH_SLOTS_MAX)
        self._device_scratch_begs_staging = tensors().on_device(self.num_pools, rows)
        self._device_scratch_ends_staging = tensors().on_device(self.num_pools, rows)
        self._device_scratch_slots_staging = tensors().on_device(self.num_pools, rows, SCRATCH_SLOTS_MAX)

    def fill_scratch(self, request_ids: Sequence[int], num_contexts: int) -> None:
        for pool in range(self.num_pools):
            for row, request_id in enumerate(request_ids[:num_contexts]):
                beg, end, slots = self.kv_cache_map[request_id].get_scratch_desc(pool)
                self._host_scratch_begs_staging.numpy()[pool, row] = beg
                self._host_scratch_ends_staging.numpy()[pool, row] = end
                self._host_scratch_slots_staging.numpy()[pool, row] = slots
