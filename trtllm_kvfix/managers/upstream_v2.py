"""Where the canary meets upstream's own V2 manager: the methods that it hears, and the caches that it refuses.

Its runtime may be compiled, so nothing of it is replaced. `prepare_resources` lies behind the last step and in front of
the next, and the two others are where slots change hands without being seen there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from trtllm_kvfix.log import log
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import V2_PLACES, Upstream
from trtllm_kvfix.staging import current_place

if TYPE_CHECKING:
    from trtllm_kvfix.managers.watched_v2 import WatchedV2
    from trtllm_kvfix.overlay.activation import Activation

Method: TypeAlias = Callable[..., Any]
KIND = "KVCacheManagerV2"
RESUMED = "_restore_page_index_bufs"  # called behind each resume of a cache that was suspended
SEAMS = ("prepare_resources", "free_resources", RESUMED)
ALLOCATES = "try_allocate_generation"  # by the scheduler: a batch has its slots before `prepare_resources`
LOOKED_AT = (
    "kv_cache_map", "kv_cache_manager_py_config", "kv_connector_manager", "is_draft", "tokens_per_block", "_stream",
    "impl.layer_grouping", "impl.pool_group_descs",
)  # fmt: skip
OF_TREES = ("eagle_choices", "use_dynamic_tree")
DRAFT_LAYERS = "KV of draft layers in the same cache depends on later tokens"
ATTRIBUTE = "_kvfix_watched"  # of the manager: what hears it, or None


def reasons(manager: Any) -> Iterator[str]:
    """Why this cache cannot be watched; none if it can."""
    unknown = _why_unknown(manager)
    if unknown:
        yield unknown
        return
    if manager.kv_connector_manager is not None:
        yield "a connector loads blocks beside the manager, which does not hear when a load is over"
    if manager.is_draft or getattr(manager, "draft_layer_ids", ()):
        yield DRAFT_LAYERS
    if "CROSS" in str(getattr(manager, "kv_cache_type", "")):
        yield "cross-attention has positions of its own"
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


def reasons_of_drafts(manager: Any, config: Any) -> Iterator[str]:
    """The same, of the engine's speculative decoding."""
    if not hasattr(manager, "max_draft_len"):
        yield "the cache of this build has no max_draft_len, which says whether blocks are given back"
    uses_one_engine = getattr(getattr(config, "spec_dec_mode", None), "use_one_engine", lambda: True)
    if uses_one_engine():
        yield DRAFT_LAYERS
    longest, total, at_once = (
        int(getattr(config, name, 0) or 0)
        for name in ("max_draft_len", "max_total_draft_tokens", "tokens_per_gen_step")
    )
    if max(total, at_once - 1) > longest or any(getattr(config, name, None) for name in OF_TREES):
        yield "accepted drafts of a tree are moved together, also in blocks of requests that have ended"


def _why_unknown(manager: Any) -> str:
    kind = type(manager)
    if kind.__name__ != KIND:
        return f"the cache is {kind.__name__}; of TensorRT-LLM's own managers, {KIND} alone is watched"
    lacking = [name for name in (*SEAMS, ALLOCATES) if not hasattr(kind, name)]
    if lacking:
        return f"{KIND} of this build has no {', '.join(lacking)}, where slots change hands"
    lacking = [name for name in LOOKED_AT if not _has(manager, name)]
    return f"{KIND} of this build has no {', '.join(lacking)}, which say where blocks lie" if lacking else ""


def _has(manager: Any, dotted: str) -> bool:
    try:
        attrgetter(dotted)(manager)
    except AttributeError:
        return False
    return True


def pool_group(manager: Any, group: int) -> Any:
    groups = manager.impl.pool_group_descs
    return next(each for each in groups if any(v.layer_group_id == group for v in each.slot_desc.variants))


def watcher_of(active: "Activation", manager: Any) -> "WatchedV2 | None":
    if not active.on or active.settings.canary == "off" or active.settings.manager == "native":
        return None
    if ATTRIBUTE not in vars(manager):
        made = None
        try:
            if not getattr(manager, "is_estimating_kv_cache", False) and not any(reasons(manager)):
                from trtllm_kvfix.managers import watched_v2  # noqa: PLC0415  needs the extension

                knows_all = watched_v2.hears_all(manager)
                made = watched_v2.watch(manager, active.settings, current_place().device, knows_all=knows_all)
        except Exception as error:
            log.error("the canary does not begin: it will not see whether cached KV changes", error=error)
        setattr(manager, ATTRIBUTE, made)
    found: WatchedV2 | None = vars(manager)[ATTRIBUTE]
    return found


def preparing(active: "Activation", original: Method) -> Method:
    @wraps(original)
    def prepare_resources(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        watched = watcher_of(active, self)
        if watched is not None:
            watched.begin_iteration(scheduled_batch)
        return original(self, scheduled_batch, *args, **kwargs)

    return prepare_resources


def freeing(active: "Activation", original: Method) -> Method:
    @wraps(original)
    def free_resources(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        watched = watcher_of(active, self)
        if watched is not None:
            watched.ends(request.py_request_id)
        return original(self, request, *args, **kwargs)

    return free_resources


def resuming(active: "Activation", original: Method) -> Method:
    @wraps(original)
    def resumed(self: Any, request_id: int, *args: Any, **kwargs: Any) -> Any:
        watched = watcher_of(active, self)
        if watched is not None:
            watched.resumed(request_id)
        return original(self, request_id, *args, **kwargs)

    return resumed


def ending(original: Method) -> Method:
    @wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = vars(self).pop(ATTRIBUTE, None)
        setattr(self, ATTRIBUTE, None)
        if watched is not None:
            watched.close()
        return original(self, *args, **kwargs)

    return shutdown


@dataclass(frozen=True)
class WatchingV2:
    """A participant of the overlay."""

    TRIGGER: str

    def replacements(self, active: "Activation") -> list[Replacement]:
        up = Upstream()
        module = up.v2_module
        if active.settings.canary == "off" or active.settings.manager == "native":
            return []
        if module is None or module.__name__ != self.TRIGGER:
            return []
        if not all(up.has(module, f"{KIND}.{name}") for name in SEAMS):
            return []  # an engine with it is refused at its start
        makers: dict[str, Callable[[Method], Method]] = {
            "prepare_resources": partial(preparing, active),
            "free_resources": partial(freeing, active),
            RESUMED: partial(resuming, active),
            "shutdown": ending,
        }
        return [Replacement(Seam(self.TRIGGER, f"{KIND}.{name}"), make) for name, make in makers.items()]


ALL = tuple(WatchingV2(place) for place in V2_PLACES)
