"""DeepSeek-V4's manager launches no shared kernel: it ships tables by copies of its own.

Older builds write a batch's rows into staging buffers, and copy out of them, also what stays there from the beginning
on. In newer ones, the sliding windows' tables are computed
on the device, from copies of the live table and of the shared copy index.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....._standin.tensors import tensors
from ....._standin.variant import since
from .....runtime.kv_cache_manager_v2 import BAD_PAGE
from ....pyexecutor.kv_cache.kv_cache_manager_v2 import KVCacheManagerV2

COMPRESSED_POOL, COMPRESSED_SCALE = 1, {4: 7, 128: 11}


class DeepseekV4CacheManager(KVCacheManagerV2):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows, width = self.max_batch_size, self.max_blocks_per_seq
        self._host_compress_block_tables_staging = {ratio: tensors().pinned(rows, width) for ratio in COMPRESSED_SCALE}
        if since("F"):
            self.allocate_per_layer(rows)
            self._precomputed_sliding_block_tables = tensors().on_device(self.num_pools, rows, 2, width)
        else:
            self._host_attention_op_block_offsets_staging = tensors().pinned(self.num_pools, rows, 2, width)
            self._host_attention_op_block_offsets_staging.fill_(BAD_PAGE)

    if since("F"):

        def compute_sliding_block_tables(self, request_ids: Sequence[int], num_contexts: int) -> None:
            copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, 1)
            device_copy_idx = self._copy_idx_to_device(copy_idx)
            self._device_kv_cache_block_offsets_input.copy_(self.host_kv_cache_block_offsets, non_blocking=True)
            if num_contexts:
                self.fill_scratch(request_ids, num_contexts)
                self._device_scratch_begs_staging.copy_(self._host_scratch_begs_staging, non_blocking=True)
                self._device_scratch_ends_staging.copy_(self._host_scratch_ends_staging, non_blocking=True)
                self._device_scratch_slots_staging.copy_(self._host_scratch_slots_staging, non_blocking=True)
            tensors().gather_rows(
                self._precomputed_sliding_block_tables,
                self._device_kv_cache_block_offsets_input,
                device_copy_idx,
                len(request_ids),
                self.index_scales.tolist(),
                self.kv_offset.tolist(),
                tensors().current_stream().cuda_stream,
            )

        def copy_batch_block_offsets(
            self,
            dst_tensor: Any,
            request_ids: Sequence[int],
            beam_width: int,
            num_contexts: int,
            num_seqs: int,
            max_blocks: int | None = None,
        ) -> None:
            del request_ids, num_contexts, max_blocks
            assert beam_width == 1, "DeepSeek-V4 takes no beams"
            dst_tensor[:, :num_seqs].copy_(self._precomputed_sliding_block_tables[:, :num_seqs], non_blocking=True)

    else:

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
            pages = self._pages(request_ids, num_contexts, beam_width)
            scales = self.index_scales.numpy()[:, None, None]
            staging = self._host_attention_op_block_offsets_staging
            staging.numpy()[:, :num_seqs, 0] = pages * scales
            staging.numpy()[:, :num_seqs, 1] = pages * scales + self.kv_offset.numpy()[:, None, None]
            dst_tensor.copy_(staging[:, : dst_tensor.shape[1]], non_blocking=True)

    def copy_batch_compress_block_tables(
        self,
        dst_tensor: Any,
        request_ids: Sequence[int],
        compress_ratio: int,
        beam_width: int,
        num_contexts: int,
        num_seqs: int,
    ) -> None:
        staging = self._host_compress_block_tables_staging[compress_ratio]
        pages = self._pages(request_ids, num_contexts, beam_width)[COMPRESSED_POOL]
        staging.numpy()[:num_seqs] = pages * COMPRESSED_SCALE[compress_ratio]
        dst_tensor[:num_seqs].copy_(staging[:num_seqs], non_blocking=True)

    def _pages(self, request_ids: Sequence[int], num_contexts: int, beam_width: int) -> npt.NDArray[np.int32]:
        copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, beam_width)
        pages: npt.NDArray[np.int32] = self.host_kv_cache_block_offsets.numpy()[:, copy_idx.numpy(), 0]
        return pages

    def standin_compressed(self, request_ids: Sequence[int], compress_ratio: int) -> list[list[int]]:
        """Tests ask for what the device should see: the pages of each request."""
        scale = COMPRESSED_SCALE[compress_ratio]
        return [[page * scale for page in self.impl.pages_of(request_id)] for request_id in request_ids]
