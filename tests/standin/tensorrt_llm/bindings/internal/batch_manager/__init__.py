"""The bound cache manager, with the names that each variant binds (surface 4.2)."""

from typing import Any

from ...._standin.bound import admission, fences, reuse
from ...._standin.bound.cache_type import CacheType
from ...._standin.bound.core import BoundCore, KvCacheStats
from ...._standin.bound.pins import UnlockedPins
from ...._standin.nanobind import flat
from ...._standin.variant import MANGLED, REMOTE_G2, before, since

__all__ = ["BaseKVCacheManager", "CacheType", "KVCacheManager", "KvCacheStats"]


_Core: Any = UnlockedPins if REMOTE_G2 else BoundCore


@flat
class BaseKVCacheManager(_Core):  # type: ignore[misc]  # by variant
    if before("C"):
        add_sequence = admission.add_sequence
    if MANGLED:
        grow_sequence = BoundCore._add_token
        admit_sequences = admission.add_sequence_batch
    else:
        add_token = BoundCore._add_token
    if since("B"):
        sync_transfer_manager_with_buffer_manager = fences.sync_transfer_manager_with_buffer_manager
        refresh_blocks = fences.refresh_blocks
    if since("B") and before("C"):
        find_new_context_block = reuse.find_new_context_block
    if since("B2") and before("C"):
        count_reusable_blocks = reuse.count_reusable_blocks
    if since("C") and not MANGLED:
        add_sequence_batch = admission.add_sequence_batch
    if since("C"):
        analyze_prefix_reuse = reuse.analyze_prefix_reuse


class KVCacheManager(BaseKVCacheManager):
    """What Python constructs."""
