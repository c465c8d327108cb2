"""Features of the installed TensorRT-LLM. They are looked up, never inferred from a version number.

Containers and forks mix cherry-picks, so a version says little; what is there can be looked at.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from trtllm_kvfix.overlay.import_hook import finder as hook

PACKAGE = "tensorrt_llm"
_EXECUTOR = f"{PACKAGE}._torch.pyexecutor"

# Where upstream has kept each module, newest place first.
RESOURCE_MANAGER = f"{_EXECUTOR}.resource_manager"
V2_PLACES = (f"{_EXECUTOR}.kv_cache.kv_cache_manager_v2", f"{_EXECUTOR}.kv_cache_manager_v2")
ATTENTION_PLACES = (f"{PACKAGE}._torch.attention.backends.trtllm", f"{PACKAGE}._torch.attention_backend.trtllm")
CONNECTOR_PLACES = (f"{_EXECUTOR}.connectors.kv_cache_connector", f"{_EXECUTOR}.kv_cache_connector")
BINDINGS = f"{PACKAGE}.bindings.internal.batch_manager"
BOUND_MANAGERS = ("BaseKVCacheManager", "KVCacheManager")
STEP_PROLOGUE_TRIM = f"{_EXECUTOR}.step_prologue_trim"
V2_UTILS = f"{BINDINGS}.kv_cache_manager_v2_utils"
PY_EXECUTOR = f"{_EXECUTOR}.py_executor"
STARTS = ("PyExecutor.start_worker", "PyExecutor.__init__")  # the second where the first is not there
LLM_REQUEST = f"{_EXECUTOR}.llm_request"
MODEL_ENGINE = f"{_EXECUTOR}.model_engine"
GRAPH_RUNNER = f"{_EXECUTOR}.cuda_graph_runner"
LORA_PARAMS = f"{PACKAGE}._torch.peft.lora.cuda_graph_lora_params"
CREATOR = f"{_EXECUTOR}._util"
SCHEDULER = f"{_EXECUTOR}.scheduler"
# The raw adapter of the host tier that servers share, of forks.
NIXL_ADAPTERS = (
    f"{_EXECUTOR}.connectors.remote_g2_raw_nixl_adapter",
    f"{_EXECUTOR}.remote_g2_raw_nixl_adapter",
)
NIXL = "nixl"
DEEPSEEK_V4 = f"{PACKAGE}._torch.attention_backend.sparse.deepseek_v4.cache_manager"
STEP_COPIES = f"{PACKAGE}._torch.cute_dsl_kernels.spec_step_copies.op"


class Upstream:
    """A read-only view. By default it sees only modules that have finished importing, because importing one from
    inside another's import would change upstream's own order; `may_import` is for examining a build that is at rest.
    """

    def __init__(self, *, may_import: bool = False) -> None:
        self._may_import = may_import

    # ---- modules ----

    def module(self, name: str) -> ModuleType | None:
        found = sys.modules.get(name)
        if found is not None:
            return None if is_importing(found) else found
        if not self._may_import or not exists(name):
            return None
        try:
            return import_module(name)
        except ImportError:
            return None  # it needs something that is not installed, so nothing can run it here
        except SystemExit as error:  # an examination goes on, and its probe says why it cannot tell
            raise RuntimeError(f"{name} ends the program that imports it: {error}") from error

    def first(self, *names: str) -> ModuleType | None:
        """The first of these modules that exists."""
        return next((found for name in names if (found := self.module(name)) is not None), None)

    @property
    def resource_manager(self) -> ModuleType | None:
        return self.module(RESOURCE_MANAGER)

    @property
    def v2_module(self) -> ModuleType | None:
        """Module that defines class KVCacheManagerV2. In early builds that is the resource manager's module."""
        found = self.first(*V2_PLACES)
        if found is None and self.has(RESOURCE_MANAGER, "KVCacheManagerV2"):
            return self.resource_manager
        return found

    @property
    def attention_module(self) -> ModuleType | None:
        return self.first(*ATTENTION_PLACES)

    @property
    def connector_module(self) -> ModuleType | None:
        return self.first(*CONNECTOR_PLACES)

    @property
    def bindings(self) -> ModuleType | None:
        return self.module(BINDINGS)

    # ---- attributes ----

    def attribute(self, module: str | ModuleType | None, dotted: str) -> Any | None:
        """`attribute("...resource_manager", "KVCacheManager.prepare_resources")`; None where any part is missing."""
        found: Any = self.module(module) if isinstance(module, str) else module
        for name in dotted.split("."):
            if found is None:
                return None
            found = getattr(found, name, None)
        return found

    def binds(self, method: str) -> bool:
        """Whether the bound KV-cache manager has this method, on any of its classes."""
        return any(self.has(BINDINGS, f"{owner}.{method}") for owner in BOUND_MANAGERS)

    def has(self, module: str | ModuleType | None, dotted: str) -> bool:
        return self.attribute(module, dotted) is not None

    def parameters(self, function: Callable[..., Any] | None) -> tuple[str, ...]:
        """Names of the parameters, or () where there is no signature to read."""
        if function is None:
            return ()
        try:
            return tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            return _documented_parameters(function)

    def source(self, function: Callable[..., Any] | None) -> str | None:
        if function is None:
            return None
        try:
            return inspect.getsource(inspect.unwrap(function))
        except (OSError, TypeError):
            return None

    def variant(self) -> str:
        """ "A" to "N" as in docs/support.md, or "unknown". For display only: decisions look at features."""
        manager = self.attribute(RESOURCE_MANAGER, "KVCacheManager")
        bound = self.attribute(BINDINGS, "BaseKVCacheManager") or self.attribute(BINDINGS, "KVCacheManager")
        if manager is None or bound is None or not hasattr(manager, "prepare_resources"):
            return "unknown"
        if not hasattr(manager, "copy_batch_block_offsets"):
            return "A"
        if not hasattr(bound, "add_sequence_batch"):
            one_by_one = "B2" if self.has(SCHEDULER, "ScheduledRequests.reset_context_requests") else "B"
            return one_by_one if hasattr(bound, "add_sequence") else "unknown"
        if not hasattr(manager, "_stage_block_offsets_for_copy"):
            return "C"
        v2 = self.parameters(self.attribute(self.v2_module, "KVCacheManagerV2"))
        if "max_copy_beam_width" in v2:
            return "F"
        reserves = self.has(self.connector_module, "KvCacheConnectorManager.configure_prefix_reservations")
        return "N" if reserves else "D"


# Modules whose body has run while the import system still counts them as being imported: the hook is called then.
_executed: set[str] = set()


@contextmanager
def executed(name: str) -> Iterator[None]:
    _executed.add(name)
    try:
        yield
    finally:
        _executed.discard(name)


def is_importing(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False)) and module.__name__ not in _executed


def exists(name: str) -> bool:
    """Whether the module can be found, without running any of it or of its parents."""
    return name in sys.modules or _located(name) is not None


def _located(name: str) -> ModuleSpec | None:
    """Find what the import system would load. This asks its finders level by level: its own look-up runs parents."""
    parent, _, _ = name.rpartition(".")
    places = None
    if parent:
        above = sys.modules[parent].__spec__ if parent in sys.modules else _located(parent)
        places = getattr(sys.modules.get(parent), "__path__", None) or getattr(
            above, "submodule_search_locations", None
        )
        if places is None:
            return None
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = find(name, places, None) if find is not None and finder is not hook else None
        except ModuleNotFoundError:
            return None  # a finder that hides it
        if spec is not None:
            return spec
    return None


def _documented_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Bound functions of nanobind have their signature in the first line of their documentation."""
    documented = re.match(r"\w+\((.*)\)\s*(?:->|$)", (getattr(function, "__doc__", None) or "").strip(), re.MULTILINE)
    if documented is None:
        return ()
    text, nested = documented[1], 1
    while nested:  # types such as tuple[int, int] hold commas of their own
        text, nested = re.subn(r"\[[^\[\]]*\]", "", text)
    return tuple(re.findall(r"(?:^|,\s*)(\w+)(?=\s*[:=,]|$)", text))
