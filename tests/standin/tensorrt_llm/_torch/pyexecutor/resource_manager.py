"""The V1 manager of each variant, and what holds the managers together (surface 1)."""

import enum
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ..._standin import dummies
from ..._standin.tensors import tensors
from ..._standin.v1 import budget, preparing
from ..._standin.v1.base import BaseResourceManager
from ..._standin.v1.common import KVCacheManagerCommon, request_context
from ..._standin.variant import MANGLED, NAME, before, since
from ...bindings.internal.batch_manager import CacheType as CacheTypeCpp
from ...bindings.internal.batch_manager import KVCacheManager as KVCacheManagerCpp

if NAME == "B":
    from ..._standin.v2.common import KVCacheManagerV2Common
    from ...bindings.internal.batch_manager.kv_cache_manager_v2_utils import copy_batch_block_offsets_to_device

__all__ = [
    "BaseResourceManager",
    "CacheTypeCpp",
    "KVCacheManager",
    "KVCacheManagerCpp",
    "ResourceManager",
    "ResourceManagerType",
    "request_context",
]


class ResourceManagerType(enum.Enum):
    KV_CACHE_MANAGER = "KV_CACHE_MANAGER"
    DRAFT_KV_CACHE_MANAGER = "DRAFT_KV_CACHE_MANAGER"
    PEFT_CACHE_MANAGER = "PEFT_CACHE_MANAGER"
    SEQ_SLOT_MANAGER = "SEQ_SLOT_MANAGER"
    SPEC_RESOURCE_MANAGER = "SPEC_RESOURCE_MANAGER"


def by_plan(copy: Callable[..., None]) -> Callable[[Any, Any], None]:
    """A signature that nobody knows, over the same race."""

    def copy_batch_block_offsets(self: Any, plan: Any) -> None:
        copy(self, plan.dst, plan.request_ids, plan.beam_width, plan.num_contexts, plan.num_seqs)

    return copy_batch_block_offsets


class KVCacheManager(KVCacheManagerCommon):
    add_dummy_requests = dummies.adder(dummies.add_v1)
    if NAME == "A":
        prepare_resources = preparing.prepare_resources_a
    elif NAME == "B":
        prepare_resources = preparing.prepare_resources_b
    elif NAME == "B2":
        prepare_resources = preparing.prepare_resources_b2
    elif before("D"):
        prepare_resources = preparing.prepare_resources_c
    else:
        prepare_resources = preparing.prepare_resources_d
        report_batch_to_connector = preparing.report_batch_to_connector
        kv_block_budget_applies = budget.kv_block_budget_applies
        maybe_fit_token_budget = budget.maybe_fit_token_budget
        fit_token_budget = budget.fit_token_budget

    def _fill_block_offsets(self, request_ids: Sequence[int], beam_width: int, num_context: int) -> None:
        """Contexts have one row each, generations one per beam behind them."""
        host = self.host_kv_cache_block_offsets
        self.impl.copy_batch_block_offsets(host, request_ids[:num_context], 1, 0)
        self.impl.copy_batch_block_offsets(host, request_ids[num_context:], beam_width, num_context)

    if since("D"):

        def copy_batch_block_offsets(
            self,
            dst_tensor: Any,
            request_ids: Sequence[int],
            beam_width: int,
            num_context: int,
            num_seqs: int,
            max_blocks: int | None = None,
        ) -> None:
            """The persistent table is filled for its other readers (surface 1.7); what is shipped is a fresh tensor."""
            self._fill_block_offsets(request_ids, beam_width, num_context)
            width = self.max_blocks_per_seq if max_blocks is None else max_blocks
            staged = self._stage_block_offsets_for_copy(num_seqs, width)
            for pool in range(self.num_pools):
                dst_tensor[pool, :num_seqs, :, :width].copy_(staged[pool], non_blocking=True)

        def _stage_block_offsets_for_copy(self, num_rows: int, max_blocks: int) -> Any:
            fresh = tensors().pinned(self.num_pools, num_rows, 2, max_blocks)
            return fresh.copy_(self.host_kv_cache_block_offsets[:, :num_rows, :, :max_blocks])

    elif since("B"):

        def copy_batch_block_offsets(  # type: ignore[misc]  # by variant
            self, dst_tensor: Any, request_ids: Sequence[int], beam_width: int, num_context: int, num_seqs: int
        ) -> None:
            """The copy reads the persistent table when it runs; the next call refills it in place (hazard H1)."""
            self._fill_block_offsets(request_ids, beam_width, num_context)
            for pool in range(self.num_pools):
                dst_tensor[pool, :num_seqs].copy_(self.host_kv_cache_block_offsets[pool, :num_seqs], non_blocking=True)

    if MANGLED:
        copy_batch_block_offsets = by_plan(copy_batch_block_offsets)  # type: ignore[assignment]  # by variant


if NAME == "B":

    class KVCacheManagerV2(KVCacheManagerV2Common):
        """The V2 manager was in the same file for a while (surface 2.1)."""

        def copy_batch_block_offsets(
            self, dst_tensor: Any, request_ids: Sequence[int], beam_width: int, num_contexts: int, num_seqs: int
        ) -> None:
            assert beam_width == 1, "KVCacheManagerV2 takes no beams"
            copy_idx = self.index_mapper.get_copy_index(request_ids, num_contexts, beam_width)
            assert copy_idx.size(0) == num_seqs
            copy_batch_block_offsets_to_device(
                self.host_kv_cache_block_offsets,
                dst_tensor,
                copy_idx,
                self.kv_cache_type is CacheTypeCpp.SELFKONLY,
                tensors().current_stream().cuda_stream,
            )


class ResourceManager:
    """Surface 1.8."""

    def __init__(self, resource_managers: dict[Any, Any]) -> None:
        self.resource_managers: OrderedDict[Any, Any] = OrderedDict(resource_managers)

    def __call__(self, name: Any) -> Any:
        return self.resource_managers[name]

    def register_resource_manager(self, name: Any, resource_manager: Any) -> None:
        self.resource_managers[name] = resource_manager

    def get_resource_manager(self, name: Any) -> Any:
        return self.resource_managers.get(name)

    def prepare_resources(self, scheduled_batch: Any) -> None:
        for manager in self.resource_managers.values():
            if hasattr(manager, "prepare_resources"):
                manager.prepare_resources(scheduled_batch)
        if since("D"):
            self._settle(scheduled_batch)

    def _settle(self, scheduled_batch: Any) -> None:
        """The batch is trimmed before the connector hears of it (surface 1.8)."""
        manager = self.get_resource_manager(ResourceManagerType.KV_CACHE_MANAGER)
        if hasattr(manager, "maybe_fit_token_budget"):
            manager.maybe_fit_token_budget(scheduled_batch)
        if hasattr(manager, "report_batch_to_connector"):
            manager.report_batch_to_connector(scheduled_batch)

    def update_resources(
        self, scheduled_batch: Any, attn_metadata: Any = None, kv_cache_dtype_byte_size: float | None = None
    ) -> None:
        for manager in self.resource_managers.values():
            if isinstance(manager, KVCacheManager):  # the exact-type trap's harmless cousin (surface 1.5)
                manager.update_resources(scheduled_batch, attn_metadata, kv_cache_dtype_byte_size)
            elif hasattr(manager, "update_resources"):
                manager.update_resources(scheduled_batch)

    def free_resources(self, request: Any) -> None:
        for manager in reversed(self.resource_managers.values()):
            if hasattr(manager, "free_resources"):
                manager.free_resources(request)

    def reorder_pipeline(self, resource_manager_list: list[Any]) -> None:
        for name in resource_manager_list:
            self.resource_managers.move_to_end(name)
