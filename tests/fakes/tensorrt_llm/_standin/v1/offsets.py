"""The host table's way to the device: racy in B and C, repaired in D (surface 1.6)."""

from collections.abc import Sequence
from typing import Any

from ..tensors import tensors
from .common import KVCacheManagerCommon


def fill(self: KVCacheManagerCommon, request_ids: Sequence[int], beam_width: int, num_context: int) -> None:
    """Contexts have one row each, generations one per beam behind them."""
    host = self.host_kv_cache_block_offsets
    self.impl.copy_batch_block_offsets(host, request_ids[:num_context], 1, 0)
    self.impl.copy_batch_block_offsets(host, request_ids[num_context:], beam_width, num_context)


def copy_from_live_table(
    self: KVCacheManagerCommon,
    dst_tensor: Any,
    request_ids: Sequence[int],
    beam_width: int,
    num_context: int,
    num_seqs: int,
) -> None:
    """The copy reads the persistent table when it runs; the next call refills that table in place (hazard H1)."""
    fill(self, request_ids, beam_width, num_context)
    for pool in range(self.num_pools):
        dst_tensor[pool, :num_seqs].copy_(self.host_kv_cache_block_offsets[pool, :num_seqs], non_blocking=True)


def copy_by_plan(self: KVCacheManagerCommon, plan: Any) -> None:
    """A signature that nobody knows, over the same race."""
    copy_from_live_table(self, plan.dst, plan.request_ids, plan.beam_width, plan.num_contexts, plan.num_seqs)


def copy_from_fresh_pinned(
    self: Any,
    dst_tensor: Any,
    request_ids: Sequence[int],
    beam_width: int,
    num_context: int,
    num_seqs: int,
    max_blocks: int | None = None,
) -> None:
    """The persistent table is still filled, for its other readers (surface 1.7); a fresh tensor is what is shipped."""
    fill(self, request_ids, beam_width, num_context)
    width = self.max_blocks_per_seq if max_blocks is None else max_blocks
    staged = self._stage_block_offsets_for_copy(num_seqs, width)
    for pool in range(self.num_pools):
        dst_tensor[pool, :num_seqs, :, :width].copy_(staged[pool], non_blocking=True)


def stage(self: KVCacheManagerCommon, num_rows: int, max_blocks: int) -> Any:
    fresh = tensors().pinned(self.num_pools, num_rows, 2, max_blocks)
    return fresh.copy_(self.host_kv_cache_block_offsets[:, :num_rows, :, :max_blocks])
