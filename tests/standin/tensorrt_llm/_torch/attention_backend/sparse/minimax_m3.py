"""A manager whose draft layers share the target's cache: it launches a second time, by a name of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._standin.tensors import tensors
from ....bindings.internal.batch_manager.kv_cache_manager_v2_utils import copy_batch_block_offsets_to_device
from ...pyexecutor.kv_cache.kv_cache_manager_v2 import KVCacheManagerV2

DRAFT_SCALE, DRAFT_KV_OFFSET = 5, 2


class MiniMaxM3KVCacheManagerV2(KVCacheManagerV2):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._draft_op_pools = ((self.num_pools, 1),)  # a pool of attention's own, and whose pages it has
        self._draft_index_scales = tensors().pinned(1).fill_(DRAFT_SCALE)
        self._draft_kv_offsets = tensors().pinned(1).fill_(DRAFT_KV_OFFSET)
        self.num_attention_op_pools = self.num_pools + len(self._draft_op_pools)

    def copy_batch_block_offsets(
        self,
        dst_tensor: Any,
        request_ids: Sequence[int],
        beam_width: int,
        num_contexts: int,
        num_seqs: int,
        max_blocks: int | None = None,
    ) -> None:
        at = (dst_tensor, request_ids, beam_width, num_contexts, num_seqs)
        super().copy_batch_block_offsets(*at, max_blocks=max_blocks)
        copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, beam_width)
        for i, (op_pool, source_pool) in enumerate(self._draft_op_pools):
            copy_batch_block_offsets_to_device(
                self.host_kv_cache_block_offsets[source_pool : source_pool + 1],
                dst_tensor[op_pool : op_pool + 1],
                copy_idx,
                self._draft_index_scales[i : i + 1],
                self._draft_kv_offsets[i : i + 1],
                self._stream.cuda_stream,
            )

    def standin_truth(self, request_ids: Sequence[int], beam_widths: Sequence[int]) -> Any:
        rows = super().standin_truth(request_ids, beam_widths)
        drafts = np.full_like(rows[:1], -1)
        for row, request_id in enumerate(request_ids):
            pages = np.array(self.impl.pages_of(request_id), np.int32)
            drafts[0, row, 0, : len(pages)] = pages * DRAFT_SCALE
            drafts[0, row, 1, : len(pages)] = pages * DRAFT_SCALE + DRAFT_KV_OFFSET
        return np.concatenate([rows, drafts])
