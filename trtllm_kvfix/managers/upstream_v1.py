"""What the canary hears of upstream's own V1 manager, and the caches that it refuses.

V1 gives out blocks inside `prepare_resources`, and moves them to a host tier and back inside C++.
"""

from collections.abc import Iterator
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.managers.watching import (
    CROSS_ATTENTION,
    Find,
    Method,
    Watchable,
    Watching,
    ending,
    freeing,
    preparing,
)
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER

if TYPE_CHECKING:
    from trtllm_kvfix.settings import Settings

KIND = "KVCacheManager"
LOOKED_AT = (
    "kv_connector_manager", "is_draft", "kv_cache_type", "max_attention_window_vec", "max_seq_len", "max_draft_len",
    "tokens_per_block", "max_blocks_per_seq", "_stream", "impl.num_pools", "impl.get_block_pool_pointers",
    "impl.get_batch_cache_block_ids", "impl.get_last_block_id", "impl.get_unique_primary_pool",
    "impl.copy_batch_block_offsets",
)  # fmt: skip


def reasons(manager: Any) -> Iterator[str]:
    """Why this cache cannot be watched; none if it can."""
    if manager.is_draft:
        yield "the cache is a draft model's, whose positions are not those of the answer"
    if "CROSS" in str(manager.kv_cache_type):
        yield CROSS_ATTENTION
    if short := [window for window in manager.max_attention_window_vec if window < manager.max_seq_len]:
        yield f"blocks leave windows, or are written over in them ({short[0]} of {manager.max_seq_len} tokens)"
    if manager.impl.num_pools != 1:
        yield f"blocks lie in {manager.impl.num_pools} pools; one is watched. Usual cause: an FP4 cache"


def has_host_tier(manager: Any) -> bool:
    _, secondary = manager.impl.get_block_pool_pointers()[0]
    return int(secondary) != 0


def granting(find: Find, original: Method) -> Method:
    """The batch has its blocks behind the call."""
    before = preparing(find, original)

    @wraps(original)
    def prepare_resources(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, scheduled_batch, *args, **kwargs)
        watched = find(self)
        if watched is not None:
            watched.has_blocks(scheduled_batch)
        return result

    return prepare_resources


def adding_dummies(find: Find, original: Method) -> Method:
    """They take blocks between two steps, and every step writes these anew."""

    @wraps(original)
    def add_dummy_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        added = original(self, *args, **kwargs)
        watched = find(self)
        if watched is not None:
            watched.has_dummies(added or ())
        return added

    return add_dummy_requests


def watch(manager: Any, settings: "Settings") -> Any:
    from trtllm_kvfix.managers import watched_v1  # noqa: PLC0415  needs the extension

    return watched_v1.watch(manager, settings, has_host=has_host_tier(manager))


V1 = Watchable(
    kind=KIND,
    module=attrgetter("resource_manager"),
    methods={
        "prepare_resources": granting,
        "free_resources": freeing,
        "add_dummy_requests": adding_dummies,
        "shutdown": ending,
    },
    also_needs=(),
    looked_at=LOOKED_AT,
    reasons=reasons,
    watch=watch,
)
ALL = (Watching(RESOURCE_MANAGER, V1),)
