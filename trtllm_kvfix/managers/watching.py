"""Where the canary meets upstream's own managers: it hears methods of their classes, and is kept in the manager.

Their runtimes may be compiled, so nothing of these is replaced.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from trtllm_kvfix.log import log
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation
    from trtllm_kvfix.settings import Settings

Method: TypeAlias = Callable[..., Any]
Find: TypeAlias = Callable[[Any], Any]  # what hears a manager, or None
ATTRIBUTE = "_kvfix_watched"  # of the manager: what hears it, or None
OF_TREES = ("eagle_choices", "use_dynamic_tree")
CONNECTOR = "a connector loads blocks beside the manager, which does not hear when a load is over"
CROSS_ATTENTION = "cross-attention has positions of its own"
DRAFT_LAYERS = "KV of draft layers in the same cache depends on later tokens"
WITH_DRAFT_LAYERS = f"{DRAFT_LAYERS}: drafts of the model's own engine, and no draft KV cache beside this one"


@dataclass(frozen=True)
class Watchable:
    """A class of managers of upstream's, by what the canary needs of it."""

    kind: str  # its name
    module: Callable[[Upstream], ModuleType | None]  # that defines it
    methods: Mapping[str, Callable[[Find, Method], Method]]  # that the canary hears, and how
    also_needs: tuple[str, ...]  # methods of it
    looked_at: tuple[str, ...]  # attributes of a manager
    reasons: Callable[[Any], Iterator[str]]  # why a manager of this class that has all of this cannot be watched
    watch: "Callable[[Any, Settings], Any]"

    def why_unknown(self, manager: Any) -> str:
        names = (*self.methods, *self.also_needs)
        if lacking := [name for name in names if not hasattr(type(manager), name)]:
            return f"{self.kind} of this build has no {', '.join(lacking)}, where slots change hands"
        if lacking := [name for name in self.looked_at if not _has(manager, name)]:
            return f"{self.kind} of this build has no {', '.join(lacking)}, which say where blocks lie"
        return ""

    def why_not(self, manager: Any) -> Iterator[str]:
        """None if it can be watched."""
        if unknown := self.why_unknown(manager):
            yield unknown
            return
        if manager.kv_connector_manager is not None:
            yield CONNECTOR
        yield from self.reasons(manager)


def _has(manager: Any, dotted: str) -> bool:
    try:
        attrgetter(dotted)(manager)
    except AttributeError:
        return False
    return True


def reasons_of_drafts(manager: Any, config: Any, *, has_draft_cache: bool) -> Iterator[str]:
    """Why speculative decoding of this engine cannot be followed; none if it can.

    `has_draft_cache`: a second manager. Drafts of the model's own engine have their layers there if there is one, and
    the target writes what it would write with drafts from elsewhere.
    """
    if not hasattr(manager, "max_draft_len"):
        yield "the cache of this build has no max_draft_len, which says whether blocks are given back"
    uses_one_engine = getattr(getattr(config, "spec_dec_mode", None), "use_one_engine", lambda: True)
    if uses_one_engine() and not has_draft_cache:
        yield WITH_DRAFT_LAYERS
    longest, total, at_once = (
        int(getattr(config, name, 0) or 0)
        for name in ("max_draft_len", "max_total_draft_tokens", "tokens_per_gen_step")
    )
    if max(total, at_once - 1) > longest or any(getattr(config, name, None) for name in OF_TREES):
        yield "accepted drafts of a tree are moved together, also in blocks of requests that have ended"


def watcher_of(watchable: Watchable, active: "Activation", manager: Any) -> Any:
    if not active.on or active.settings.canary == "off" or active.settings.manager == "native":
        return None
    if ATTRIBUTE not in vars(manager):
        made = None
        try:
            is_kind = type(manager).__name__ == watchable.kind
            if (
                is_kind
                and not getattr(manager, "is_estimating_kv_cache", False)
                and not any(watchable.why_not(manager))
            ):
                made = watchable.watch(manager, active.settings)
        except Exception as error:
            log.error("the canary does not begin: it will not see whether cached KV changes", error=error)
        setattr(manager, ATTRIBUTE, made)
    return vars(manager)[ATTRIBUTE]


def preparing(find: Find, original: Method) -> Method:
    @wraps(original)
    def prepare_resources(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        watched = find(self)
        if watched is not None:
            watched.begin_iteration(scheduled_batch)
        return original(self, scheduled_batch, *args, **kwargs)

    return prepare_resources


def freeing(find: Find, original: Method) -> Method:
    @wraps(original)
    def free_resources(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        watched = find(self)
        if watched is not None:
            watched.ends(request.py_request_id)
        return original(self, request, *args, **kwargs)

    return free_resources


def ending(_: Find, original: Method) -> Method:
    @wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = vars(self).pop(ATTRIBUTE, None)
        setattr(self, ATTRIBUTE, None)
        if watched is not None:
            watched.close()
        return original(self, *args, **kwargs)

    return shutdown


@dataclass(frozen=True)
class Watching:
    """A participant of the overlay."""

    TRIGGER: str
    watchable: Watchable

    def replacements(self, active: "Activation") -> list[Replacement]:
        if active.settings.canary == "off" or active.settings.manager == "native":
            return []
        kind, up = self.watchable.kind, Upstream()
        module = self.watchable.module(up)
        if module is None or module.__name__ != self.TRIGGER:
            return []
        if not all(up.has(module, f"{kind}.{name}") for name in self.watchable.methods):
            return []  # an engine with it is refused at its start
        find = partial(watcher_of, self.watchable, active)
        return [
            Replacement(Seam(self.TRIGGER, f"{kind}.{name}"), partial(make, find))
            for name, make in self.watchable.methods.items()
        ]
