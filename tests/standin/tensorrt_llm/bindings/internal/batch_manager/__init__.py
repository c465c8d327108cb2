"""C++ binds these, with the names that each variant binds (surface 4.2)."""

from copy import copy
from typing import Any

from ...._standin.extension import bound, era
from ...._standin.variant import MANGLED, REMOTE_G2, before

__all__ = [
    "BaseKVCacheManager",
    "BlockKey",
    "CacheType",
    "KVCacheManager",
    "KvCacheConnectorManager",
    "KvCacheStats",
    "LlmRequest",
    "LlmRequestState",
]

CacheType: Any = bound.CacheType
LlmRequest: Any = era.LlmRequest
LlmRequestState: Any = bound.LlmRequestState
BlockKey: Any = era.BlockKey
KvCacheConnectorManager: Any = era.KvCacheConnectorManager

if before("C"):
    from ...._standin.bound.witnessed import WitnessedManager

    BaseKVCacheManager: Any = era.BaseKVCacheManager
    KVCacheManager: Any = WitnessedManager
    KvCacheStats: Any = bound.KvCacheStats
else:
    from ...._standin.bound import admission, fences, reuse
    from ...._standin.bound.core import BoundCore
    from ...._standin.bound.core import KvCacheStats as KvCacheStats
    from ...._standin.bound.pins import UnlockedPins
    from ...._standin.nanobind import flat

    _Core: Any = UnlockedPins if REMOTE_G2 else BoundCore

    @flat
    class BaseKVCacheManager(_Core):  # type: ignore[misc,no-redef]  # by variant
        __slots__ = ()
        sync_transfer_manager_with_buffer_manager = fences.sync_transfer_manager_with_buffer_manager
        refresh_blocks = fences.refresh_blocks
        analyze_prefix_reuse = reuse.analyze_prefix_reuse
        if MANGLED:
            grow_sequence = copy(BoundCore._add_token)
            admit_sequences = admission.add_sequence_batch
        else:
            add_token = copy(BoundCore._add_token)
            add_sequence_batch = admission.add_sequence_batch

    class KVCacheManager(BaseKVCacheManager):  # type: ignore[misc,no-redef]  # by variant
        """Python constructs this."""

        __slots__ = ()
