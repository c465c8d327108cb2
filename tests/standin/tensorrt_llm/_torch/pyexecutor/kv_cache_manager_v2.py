"""The V2 manager was here for a while (surface 2.1)."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..._standin.v2.common import KVCacheManagerV2Common
from ..._standin.variant import MANGLED
from ...bindings.internal.batch_manager.kv_cache_manager_v2_utils import (
    IndexMapper,
    copy_batch_block_offsets_to_device,
)

__all__ = ["IndexMapper", "KVCacheManagerV2", "copy_batch_block_offsets_to_device"]


class KVCacheManagerV2(KVCacheManagerV2Common):
    if MANGLED:

        def copy_batch_block_offsets(self, plan: Any) -> None:
            copy_idx = self.index_mapper.get_copy_index(plan.request_ids, plan.num_contexts, plan.beam_width)
            kernel_plan = SimpleNamespace(
                table=self.host_kv_cache_block_offsets,
                copy_index=copy_idx,
                index_scales=self.index_scales,
                kv_offset=self.kv_offset,
            )
            copy_batch_block_offsets_to_device(kernel_plan, plan.dst, self._stream.cuda_stream)

    else:

        def copy_batch_block_offsets(  # type: ignore[misc]  # by variant
            self, dst_tensor: Any, request_ids: Sequence[int], beam_width: int, num_contexts: int, num_seqs: int
        ) -> None:
            copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, beam_width)
            assert copy_idx.size(0) == num_seqs
            copy_batch_block_offsets_to_device(
                self.host_kv_cache_block_offsets,
                dst_tensor,
                copy_idx,
                self.index_scales,
                self.kv_offset,
                self._stream.cuda_stream,
            )
