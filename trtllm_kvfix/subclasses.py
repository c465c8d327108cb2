"""Upstream's managers with our parts in them, for programs that construct their managers themselves.

    from trtllm_kvfix.subclasses import KvfixKVCacheManager, KvfixResourceManager

Nothing of upstream's is replaced. The derived classes run upstream's own methods, with our objects in the place of
those that they name. docs/native-manager.md says which class to use when. TensorRT-LLM is imported when a class is
asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

from trtllm_kvfix import fixes
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.fixes.batches import main_v1_manager
from trtllm_kvfix.managers.constructors import build_objection, native_cache, native_events
from trtllm_kvfix.overlay.fix import Fix, Replacement, State
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.settings import FixSettings, Settings

_made: WeakValueDictionary[str, type] = WeakValueDictionary()


def __getattr__(name: str) -> Any:
    if name not in MAKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its classes are {', '.join(MAKERS)}")
    up = Upstream(may_import=True)
    owner, make = MAKERS[name]
    base = up.attribute(up.v2_module if name.endswith("V2") else RESOURCE_MANAGER, owner)
    if base is None:
        raise NotServed(f"{name}: this TensorRT-LLM has no {owner}")
    known = _made.get(name)
    if known is None or known.__base__ is not base:
        known = _made[name] = make(up, base)
    return known


# ---- the classes ----


def _v1(up: Upstream, base: type) -> type:
    """Upstream's manager over our block manager. Upstream's answers that depend on its exact type stay as they are."""
    objection = build_objection(up)
    if objection:
        raise NotServed(f"KvfixKVCacheManager: {objection}")
    budget = _parts_of(fixes.of("token-budget"), up)
    made = _derived("KvfixKVCacheManager", base, [*budget, *_parts_of(fixes.of("staged-offsets-v1"), up)])
    made._kvfix_budget = budget  # type: ignore[attr-defined]
    _bind(made, base, "__init__", {"KVCacheManagerCpp": native_cache, "KVCacheEventManagerCpp": native_events})
    if hasattr(base, "kv_block_budget_applies"):
        _bind(made, base, "kv_block_budget_applies", {base.__name__: made})
    return made


def _resources(up: Upstream, base: type) -> type:  # noqa: ARG001  one interface
    """Fits batches into max_num_tokens after reuse is known, once it has seen the executor that it belongs to."""
    manager_class = __getattr__("KvfixKVCacheManager")
    parts: Sequence[Replacement] = manager_class._kvfix_budget
    made = _derived("KvfixResourceManager", base, parts)
    schedule = [each for each in parts if each.seam.module == PY_EXECUTOR]
    learn = schedule[0].make(lambda _executor: None) if schedule else lambda _executor: None

    def serve(self: Any, executor: Any) -> None:
        """Call it once, before the executor's loop starts."""
        if executor.resource_manager is not self or not isinstance(main_v1_manager(self), manager_class):
            raise NotServed("KvfixResourceManager: it serves its own executor, with a KvfixKVCacheManager")
        if getattr(executor, "kv_connector_manager", None) is not None:
            raise NotServed("KvfixResourceManager: connectors are fitted by trtllm_kvfix.enable() alone")
        learn(executor)

    made.serve = serve  # type: ignore[attr-defined]
    return made


def _v2(up: Upstream, base: type) -> type:
    """Upstream's own core with staged offsets. It claims blocks before it charges, so its budget is exact."""
    return _derived("KvfixKVCacheManagerV2", base, _parts_of(fixes.of("staged-offsets-v2"), up))


MAKERS: Mapping[str, tuple[str, Callable[[Upstream, type], type]]] = {
    "KvfixKVCacheManager": ("KVCacheManager", _v1),
    "KvfixResourceManager": ("ResourceManager", _resources),
    "KvfixKVCacheManagerV2": ("KVCacheManagerV2", _v2),
}


# ---- how they are made ----


def _parts_of(fix: Fix, up: Upstream) -> Sequence[Replacement]:
    """Replacements of the fix: none if upstream does not need it, or if the overlay has made them already."""
    answer = fix.probe(up)
    if answer.state is State.UNKNOWN:
        raise NotServed(f"{fix.id}: {answer.reason}")
    if answer.state is not State.NEEDED:
        return ()
    tuning: FixSettings = Settings().tuning
    parts = fix.replacements(up, tuning)
    return [each for each in parts if not hasattr(_original(up, each), "__kvfix_original__")]


def _original(up: Upstream, part: Replacement) -> Any:
    return up.attribute(part.seam.module, part.seam.path)


def _derived(name: str, base: type, parts: Sequence[Replacement]) -> type:
    """The base with the parts that are about it. Its methods see what takes the place of a name in its module."""
    made = type(name, (base,), {"__module__": __name__, "__doc__": base.__doc__})
    names = {each.seam.path: each.make(_global(base, each.seam.path)) for each in parts if "." not in each.seam.path}
    for method, function in vars(base).items():
        if names and isinstance(function, FunctionType) and names.keys() & set(function.__code__.co_names):
            setattr(made, method, _rebound(function, names))
    for each in parts:
        owner, _, attribute = each.seam.path.rpartition(".")
        if owner == base.__name__:
            setattr(made, attribute, each.make(getattr(made, attribute, None)))
    return made


def _global(base: type, name: str) -> Any:
    module = __import__(base.__module__, fromlist=[name])
    return getattr(module, name)


def _bind(made: type, base: type, method: str, names: Mapping[str, Any]) -> None:
    function = getattr(base, method)
    if not isinstance(function, FunctionType) or not names.keys() & set(function.__code__.co_names):
        raise NotServed(f"{made.__name__}: {base.__name__}.{method} does not name {', '.join(names)} itself")
    setattr(made, method, _rebound(function, names))


def _rebound(function: FunctionType, names: Mapping[str, Any]) -> FunctionType:
    """The same code, which sees other objects under these global names."""
    made = FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__doc__, made.__qualname__ = function.__doc__, function.__qualname__
    return made
