"""Imports what the scenarios run, and completes what excerpts lack, before the overlay looks at any of it."""

import inspect
import sys
from importlib import import_module
from types import ModuleType

from integration.upstream.executor_methods import Executor
from integration.upstream.fallbacks import complete, replace
from integration.upstream.finder import PACKAGE, SEAMS, Tree
from integration.upstream.launch_filter import STEP_PROLOGUE_TRIM, complete_launch
from integration.upstream.manager_methods import Manager
from integration.upstream.pipeline_methods import SENDS_RESULTS, PipelineExecutor, PyResult

EXECUTOR = f"{PACKAGE}._torch.pyexecutor"
V2_BINDINGS = f"{PACKAGE}.bindings.internal.batch_manager.kv_cache_manager_v2_utils"
V2_MANAGER = f"{EXECUTOR}.kv_cache.kv_cache_manager_v2"
LORA_PARAMS = f"{PACKAGE}._torch.peft.lora.cuda_graph_lora_params"
STEP_COPIES = f"{PACKAGE}._torch.cute_dsl_kernels.spec_step_copies.op"
MINIMAX = f"{PACKAGE}._torch.attention_backend.sparse.minimax_m3.cache_manager"
# No seams of every server; a process that uses them has them imported before it serves.
ALSO = (LORA_PARAMS, STEP_COPIES, MINIMAX, STEP_PROLOGUE_TRIM)


def load(tree: Tree) -> None:
    """Every seam that the tree has. Doubles of seams go: to the overlay a module is there or it is not."""
    import_module(V2_BINDINGS)  # no excerpt of the newest V2 manager holds its imports
    for name in (*(f"{PACKAGE}.{seam}" for seam in SEAMS), *ALSO):
        if (tree.root / (name.replace(".", "/") + ".py")).exists():
            try:
                import_module(name)
            except Exception as error:
                tree.doubled[name] = f"{type(error).__name__}: {error}"
    if not tree.is_excerpts:
        _replace_constructors(tree)
    _place_batches(tree)
    if tree.is_excerpts:
        _complete(tree, "resource_manager", "KVCacheManager", Manager)
        _complete(tree, "py_executor", "PyExecutor", Executor)
        _complete(tree, "py_executor", "PyExecutor", PipelineExecutor)
        if hasattr(getattr(sys.modules.get(f"{EXECUTOR}.py_executor"), "PyExecutor", None), SENDS_RESULTS):
            _complete(tree, "llm_request", "PyResult", PyResult)
    if tree.is_excerpts and STEP_PROLOGUE_TRIM in tree.real:
        tree.lacking["KVCacheManagerV2"] = complete_launch(sys.modules[V2_MANAGER])
    for seam in SEAMS:
        if f"{PACKAGE}.{seam}" not in tree.real:
            sys.modules.pop(f"{PACKAGE}.{seam}", None)


def _complete(tree: Tree, module_name: str, class_name: str, fallback: type) -> None:
    module = sys.modules.get(f"{EXECUTOR}.{module_name}")
    if module is None or f"{EXECUTOR}.{module_name}" not in tree.real:
        return
    tree.constructors[class_name] = vars(getattr(module, class_name)).get("__init__")
    instead = ("__init__",) if _wants_unread_bindings(module, class_name) else ()
    tree.lacking[class_name] = tree.lacking.get(class_name, []) + complete(
        module, class_name, fallback, instead=instead
    )


def _replace_constructors(tree: Tree) -> None:
    """A checkout lacks nothing, but its constructor may want bindings that nobody has read."""
    module = sys.modules.get(f"{EXECUTOR}.resource_manager")
    if module is not None and _wants_unread_bindings(module, "KVCacheManager"):
        tree.lacking["KVCacheManager"] = replace(module, "KVCacheManager", Manager, ("__init__",))


def _wants_unread_bindings(module: ModuleType, class_name: str) -> bool:
    """Nobody has read the bound constructor to which the newest manager speaks."""
    constructor = vars(getattr(module, class_name)).get("__init__")
    return constructor is not None and "pool_configurations" in inspect.signature(constructor).parameters


def _place_batches(tree: Tree) -> None:
    """If the tree has the module that defines batches, the package exports its classes, as upstream's does."""
    name = f"{EXECUTOR}.scheduler.scheduler"
    if not (tree.root / (name.replace(".", "/") + ".py")).exists():
        return
    own = import_module(name)
    found = own.ScheduledRequests
    if not hasattr(found, "encoder_requests"):  # the executor's excerpt is newer than that of the batch
        found.encoder_requests, found.num_encoder_requests = [], 0
        tree.lacking["ScheduledRequests"] = ["encoder_requests", "num_encoder_requests"]
    for module in (f"{EXECUTOR}.scheduler", f"{EXECUTOR}.py_executor"):
        if module in sys.modules:
            vars(sys.modules[module])["ScheduledRequests"] = found
            vars(sys.modules[module])["SerializableSchedulerOutput"] = own.SerializableSchedulerOutput
