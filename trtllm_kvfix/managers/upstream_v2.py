"""What the canary hears of upstream's own V2 manager, and the caches that it refuses.

`prepare_resources` lies behind the last step and in front of the next. The two others are where slots change hands
without being seen there.
"""

from collections.abc import Iterator
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.managers.watching import (
    CROSS_ATTENTION,
    DRAFT_LAYERS,
    Find,
    Method,
    Watchable,
    Watching,
    ending,
    freeing,
    preparing,
)
from trtllm_kvfix.overlay.upstream import V2_PLACES
from trtllm_kvfix.staging import current_place

if TYPE_CHECKING:
    from trtllm_kvfix.settings import Settings

KIND = "KVCacheManagerV2"
RESUMED = "_restore_page_index_bufs"  # called behind each resume of a cache that was suspended
ALLOCATES = "try_allocate_generation"  # by the scheduler: a batch has its slots before `prepare_resources`
LOOKED_AT = (
    "kv_cache_map", "kv_cache_manager_py_config", "kv_connector_manager", "is_draft", "tokens_per_block", "_stream",
    "impl.layer_grouping", "impl.pool_group_descs",
)  # fmt: skip


def reasons(manager: Any) -> Iterator[str]:
    if manager.is_draft or getattr(manager, "draft_layer_ids", ()):
        yield DRAFT_LAYERS
    if "CROSS" in str(getattr(manager, "kv_cache_type", "")):
        yield CROSS_ATTENTION
    if getattr(manager, "enable_swa_scratch_reuse", False):
        yield "with enable_swa_scratch_reuse several blocks share a slot"
    if getattr(manager, "_has_cp_helix", False):
        yield "with helix parallelism a block is spread over ranks"
    if getattr(manager, "kv_compression_manages_history", False):
        yield "KV cache compression rewrites blocks"
    if getattr(manager, "_fresh_page_fill", None) is not None:
        yield "TRTLLM_KV_FRESH_PAGE_FILL has pages overwritten"
    for layer in manager.kv_cache_manager_py_config.layers:
        if any(getattr(buffer, "is_sparse", False) for buffer in layer.buffers):
            yield "a sparse buffer has its blocks on two levels"
    for group in range(len(manager.impl.layer_grouping)):
        pools = len(pool_group(manager, group).pools)
        if pools != 1:
            yield f"blocks of layer group {group} lie in {pools} pools; one is watched. Usual cause: an FP4 cache"


def pool_group(manager: Any, group: int) -> Any:
    groups = manager.impl.pool_group_descs
    return next(each for each in groups if any(v.layer_group_id == group for v in each.slot_desc.variants))


def resuming(find: Find, original: Method) -> Method:
    @wraps(original)
    def resumed(self: Any, request_id: int, *args: Any, **kwargs: Any) -> Any:
        watched = find(self)
        if watched is not None:
            watched.resumed(request_id)
        return original(self, request_id, *args, **kwargs)

    return resumed


def watch(manager: Any, settings: "Settings") -> Any:
    from trtllm_kvfix.managers import watched_v2  # noqa: PLC0415  needs the extension

    knows_all = watched_v2.hears_all(manager)
    return watched_v2.watch(manager, settings, current_place().device, knows_all=knows_all)


V2 = Watchable(
    kind=KIND,
    module=attrgetter("v2_module"),
    methods={
        "prepare_resources": preparing,
        "free_resources": freeing,
        RESUMED: resuming,
        "shutdown": ending,
    },
    also_needs=(ALLOCATES,),
    looked_at=LOOKED_AT,
    reasons=reasons,
    watch=watch,
)
ALL = tuple(Watching(place, V2) for place in V2_PLACES)
