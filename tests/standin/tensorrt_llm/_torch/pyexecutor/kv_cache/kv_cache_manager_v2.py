"""The V2 manager has settled here (surface 2.1). It still ships from the live table (surface 2.4).

Nobody has read how the manager asks upstream's filter of equal copies. What it compares and when it records follows the
description that the filter gives of itself.
"""

from collections.abc import Sequence
from typing import Any

from ...._standin.tensors import tensors
from ...._standin.v2.common import KVCacheManagerV2Common
from ...._standin.variant import STEP_PROLOGUE_TRIM, since
from ....bindings.internal.batch_manager.kv_cache_manager_v2_utils import (
    IndexMapper,
    copy_batch_block_offsets_to_device,
)

if STEP_PROLOGUE_TRIM:
    from ..step_prologue_trim import GLOBAL_COPY_FILTER

__all__ = ["IndexMapper", "KVCacheManagerV2", "copy_batch_block_offsets_to_device"]


class KVCacheManagerV2(KVCacheManagerV2Common):
    if since("F"):

        def __init__(  # its parameters distinguish it from D (surface 2.2)
            self,
            kv_cache_config: Any,
            kv_cache_type: Any,
            *,
            max_copy_beam_width: int = 1,
            disable_overlap_scheduler: bool = False,
            **kwargs: Any,
        ) -> None:
            assert max_copy_beam_width == 1, "the stand-in has no cross-attention beams"
            del disable_overlap_scheduler
            super().__init__(kv_cache_config, kv_cache_type, **kwargs)

    def copy_batch_block_offsets(
        self,
        dst_tensor: Any,
        request_ids: Sequence[int],
        beam_width: int,
        num_contexts: int,
        num_seqs: int,
        max_blocks: int | None = None,
    ) -> None:
        del max_blocks
        assert beam_width == 1, "KVCacheManagerV2 takes no beams"
        copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, beam_width)
        assert copy_idx.size(0) == num_seqs
        if self._use_per_layer_page_tables:
            self._copy_batch_block_offsets_per_layer(dst_tensor, request_ids, copy_idx, num_contexts, num_seqs)
            return
        payload = self.host_kv_cache_block_offsets.numpy()[:, copy_idx.numpy(), 0] if STEP_PROLOGUE_TRIM else None
        if payload is not None and GLOBAL_COPY_FILTER.unchanged(dst_tensor, payload):
            return
        copy_batch_block_offsets_to_device(
            self.host_kv_cache_block_offsets,
            dst_tensor,
            copy_idx,
            self.index_scales,
            self.kv_offset,
            self._stream.cuda_stream,
        )
        if payload is not None:
            GLOBAL_COPY_FILTER.record(dst_tensor, payload)

    def _copy_batch_block_offsets_per_layer(
        self, dst_tensor: Any, request_ids: Sequence[int], copy_idx: Any, num_contexts: int, num_seqs: int
    ) -> None:
        """The whole table, the copy index and scratch ranges are copied late, and all are refilled by the next call."""
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

    def _copy_idx_to_device(self, copy_idx: Any) -> Any:
        self._device_copy_idx_staging[: copy_idx.size(0)].copy_(copy_idx, non_blocking=True)
        return self._device_copy_idx_staging

    def _copy_scratch_metadata_to_device(self, request_ids: Sequence[int], num_contexts: int) -> tuple[Any, Any, Any]:
        self.fill_scratch(request_ids, num_contexts)
        self._device_scratch_begs_staging.copy_(self._host_scratch_begs_staging, non_blocking=True)
        self._device_scratch_ends_staging.copy_(self._host_scratch_ends_staging, non_blocking=True)
        self._device_scratch_slots_staging.copy_(self._host_scratch_slots_staging, non_blocking=True)
        return (
            self._device_scratch_begs_staging,
            self._device_scratch_ends_staging,
            self._device_scratch_slots_staging,
        )
