"""The constructors of upstream that we replace: those of the cache, its events, its scheduler, and its requests.

Upstream calls the first three by module-level names. Each name gets an object that answers for the class behind it.
When it is called while `kvfix.manager: native` holds, it makes ours. A request for something that ours does not serve
is refused by name: a start never falls back silently. A request remains upstream's, and notes are taken while it is
made: later they would cost more, or could not be had at all.

What a constructor cannot see of its engine is looked at before the engine starts, where ranks stop together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers import upstream_v1, upstream_v2, watching
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import CREATOR, LLM_REQUEST, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtllm_kvfix.overlay.activation import Activation, Replacing


SETTING = "kvfix.manager: native"


class Substitute:
    """Takes the place of a class of upstream's. `ours` makes our object, or returns None if upstream's is wanted."""

    def __init__(self, active: "Activation", ours: Callable[..., Any], theirs: Any) -> None:
        self._active = active
        self._ours = ours
        self._theirs = theirs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wanted = self._active.on and self._active.settings.manager == "native"
        made = self._ours(*args, **kwargs) if wanted else None
        return self._theirs(*args, **kwargs) if made is None else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


@dataclass(frozen=True)
class ReplacedConstructor:
    """A participant of the overlay."""

    TRIGGER: str
    name: str
    ours: Callable[..., Any]
    is_needed: bool = True  # a build without the name cannot be served

    def replacements(self, active: "Activation") -> list[Replacement]:
        if active.settings.manager != "native":
            return []
        if not Upstream().has(self.TRIGGER, self.name):
            if not self.is_needed:
                return []
            raise NotServed(f"{SETTING}: {self.TRIGGER} has no {self.name}, which our manager would replace")
        return [Replacement(Seam(self.TRIGGER, self.name), partial(Substitute, active, self.ours))]


def native_cache(*args: Any, **kwargs: Any) -> Any:
    objection = build_objection(Upstream())
    if objection:
        raise NotServed(f"{SETTING}: {objection}")
    if args:
        raise NotServed(
            f"{SETTING}: the constructor of this build takes positional arguments, which do not show what they mean"
        )
    from trtllm_kvfix.managers.native_kv_cache import NativeKvCache  # noqa: PLC0415  needs the extension

    return NativeKvCache(**kwargs)


def native_events(*args: Any, **kwargs: Any) -> Any:
    from trtllm_kvfix.managers.reports import EventManager  # noqa: PLC0415  needs the extension

    return EventManager(*args, **kwargs)


def _capacity_scheduler(*args: Any, **kwargs: Any) -> Any:
    from trtllm_kvfix.managers.capacity import scheduler_for  # noqa: PLC0415  needs the extension

    return scheduler_for(*args, **kwargs)


def build_objection(upstream: Upstream) -> str:
    """Return the reason why ours does not serve this build, or an empty string. Mostly it never ran on its Python."""
    if not upstream.binds("refresh_blocks"):
        return "builds of 1.1 are not served: their attention ships the table of offsets itself"
    if upstream.binds("count_reusable_blocks"):
        return "builds of early spring 2026, whose scheduler asks count_reusable_blocks, have not been run with ours"
    if upstream.binds("add_sequence_batch") and not upstream.has(
        RESOURCE_MANAGER, "KVCacheManager._stage_block_offsets_for_copy"
    ):
        return "builds of spring 2026, which admit batches and do not stage offsets, have not been run with ours"
    if upstream.variant() in ("F", "N"):
        return f"builds of variant {upstream.variant()} have not been run with ours"
    return ""


def noting(make: Callable[..., None]) -> Callable[..., None]:
    from trtllm_kvfix.managers.prompts import note_request  # noqa: PLC0415  needs the extension

    @wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        note_request(self, kwargs)

    return make_and_note


class NotingConstructor:
    """A participant of the overlay."""

    TRIGGER = LLM_REQUEST

    def replacements(self, active: "Activation") -> list[Replacement]:
        if active.settings.manager != "native":
            return []
        return [Replacement(Seam(self.TRIGGER, "LlmRequest.__init__"), noting)]


ALL: "tuple[Replacing, ...]" = (
    ReplacedConstructor(RESOURCE_MANAGER, "KVCacheManagerCpp", native_cache),
    ReplacedConstructor(RESOURCE_MANAGER, "KVCacheEventManagerCpp", native_events, is_needed=False),
    ReplacedConstructor(CREATOR, "BindCapacityScheduler", _capacity_scheduler),
    NotingConstructor(),
    *upstream_v1.ALL,
    *upstream_v2.ALL,
)


WAY_OUT = "docs/native-manager.md lists what it serves; with `kvfix.manager: upstream` this engine starts"


HOST_ADMISSION = "kvfix.native_host_admission: {}"
NO_CHOICE = "TensorRT-LLM's own manager has no such rule. With `all`, or `kvfix.manager: native`, this engine starts"
CANARY = "kvfix.canary: observe"
UNWATCHED = "docs/canary.md says what is watched, and why. With `kvfix.canary: off` this engine starts"


def objection(settings: Settings, executor: Any) -> str:
    """Return the reason why this engine must not start. Empty if it may."""
    if settings.manager == "native":
        return next((f"{SETTING}: {reason}. {WAY_OUT}" for reason in _reasons(executor)), "")
    if settings.native_host_admission != "all":
        return f"{HOST_ADMISSION.format(settings.native_host_admission)}: {NO_CHOICE}"
    if settings.canary == "off":
        return ""
    return next((f"{CANARY}: {reason}. {UNWATCHED}" for reason in _reasons_not_to_watch(executor)), "")


def _manager_of(executor: Any) -> Any:
    manager = getattr(executor, "kv_cache_manager", None)
    return _registered(executor, "KV_CACHE_MANAGER") if manager is None else manager


def _registered(executor: Any, name: str) -> Any:
    managers = getattr(getattr(executor, "resource_manager", None), "resource_managers", {})
    return next((manager for kind, manager in managers.items() if kind.name == name), None)


def _reasons_of_cache(manager: Any) -> "Iterator[str]":
    kind, watchable = type(manager).__name__, {each.kind: each for each in (upstream_v1.V1, upstream_v2.V2)}
    if kind in watchable:
        yield from watchable[kind].why_not(manager)
    else:
        yield f"the cache is {kind}; of TensorRT-LLM's own managers, {' and '.join(watchable)} alone are watched"


def _reasons_not_to_watch(executor: Any) -> "Iterator[str]":
    yield from _reasons_of_cache(_manager_of(executor))
    yield from _reasons_of_engine(executor)
    if (getattr(executor, "max_beam_width", None) or 1) > 1:
        yield "beams share blocks, and part from them"
    if _has_drafts(executor):
        has_draft_cache = _registered(executor, "DRAFT_KV_CACHE_MANAGER") is not None
        yield from watching.reasons_of_drafts(
            _manager_of(executor), _spec_config_of(executor), has_draft_cache=has_draft_cache
        )
    arguments = getattr(getattr(executor, "model_engine", None), "llm_args", None)
    if getattr(arguments, "kv_cache_compression_config", None) is not None:
        yield "KV cache compression rewrites blocks, or brings them back from the host as other bytes"


def _reasons(executor: Any) -> "Iterator[str]":
    manager = _manager_of(executor)
    kind = type(getattr(manager, "impl", None))
    if kind.__name__ != "NativeKvCache":
        yield (
            f"this engine's cache is {type(manager).__name__} over {kind.__name__}; ours replaces V1's bound one only. "
            "Usual cause: KVCacheManagerV2 is switched on, or the model has a cache of another kind"
        )
    yield from _reasons_of_engine(executor)
    if _has_drafts(executor):
        yield "speculative decoding is not served"
    if getattr(executor, "draft_model_engine", None) is not None:
        yield "a draft model is not served"
    scheduler = getattr(executor, "scheduler", None)
    capacity = getattr(scheduler, "capacity_scheduler", None)
    if type(capacity).__name__ == "BindCapacityScheduler":
        yield "the bound capacity scheduler was made before ours could take its place"


def _spec_config_of(executor: Any) -> Any:
    return getattr(getattr(executor, "model_engine", None), "spec_config", None)


def _has_drafts(executor: Any) -> bool:
    return getattr(executor, "drafter", None) is not None or _spec_config_of(executor) is not None


def _reasons_of_engine(executor: Any) -> "Iterator[str]":
    engine = getattr(executor, "model_engine", None)
    if any("auto_deploy" in each.__module__.split(".") for each in type(engine).__mro__):
        yield "AutoDeploy is not served: its engine has not been run with ours"
    if getattr(executor, "kv_cache_transceiver", None) is not None:
        yield "disaggregated serving is not served"
    dist = getattr(executor, "dist", None)
    if getattr(dist, "pp_size", 1) > 1 or getattr(dist, "cp_size", 1) > 1:
        yield "pipelines and context parallelism are not served"
    if getattr(executor, "enable_attention_dp", False):
        yield "attention data parallelism is not served"
    arguments = getattr(engine, "llm_args", None)
    if (
        getattr(arguments, "sleep_config", None) is not None
        or getattr(arguments, "enable_sleep", False)  # until spring 2026
        or getattr(executor, "virtual_memory_pools", None)
    ):
        yield "sleeping is not served: blocks lose what they hold, and pools of ours would stay awake"
