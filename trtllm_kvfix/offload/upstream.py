"""TensorRT-LLM's connector classes, wherever this version keeps them. Without TensorRT-LLM, plain objects stand in."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, PY_EXECUTOR, Upstream


class PlainScheduler:
    """The part of upstream's scheduler base that the connector uses."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args


class PlainWorker:
    """The part of upstream's worker base that the connector uses."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def register_forward_pass_callable(self) -> None:
        """Nothing needs to be called behind a step."""


def connector_module() -> ModuleType | None:
    """Upstream's module, if TensorRT-LLM has been imported already: upstream is what loads connectors."""
    if "tensorrt_llm" not in sys.modules:
        return None
    for place in CONNECTOR_PLACES:
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
    return None


def bases() -> tuple[type[Any], type[Any]]:
    """The base classes of the scheduler side and of the worker side."""
    module = connector_module()
    if module is None:
        return PlainScheduler, PlainWorker
    return module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker


def is_v2(kv_cache_manager: Any) -> bool:
    """Whether the manager is a KVCacheManagerV2, which has its sequences in Python."""
    return isinstance(getattr(kv_cache_manager, "kv_cache_map", None), dict)


def gives_each_rank_a_scheduler() -> bool:
    """Whether attention data parallelism has one scheduler per rank. Late managers ask connectors for support."""
    return hasattr(getattr(connector_module(), "KvCacheConnectorManager", None), "validate_attention_dp")


def warn_where_nothing_orders_copies(kv_cache_config: Any) -> None:
    """Only 1.1 copies the beginnings of blocks on a stream that no other waits for, not even the forward's."""
    if "tensorrt_llm" not in sys.modules or Upstream().variant() != "A":
        return
    partial = getattr(kv_cache_config, "enable_partial_reuse", True)
    if partial and getattr(kv_cache_config, "copy_on_partial_reuse", True):
        log.warning(
            "this TensorRT-LLM copies blocks that are reused in part while others read and load them: set "
            "kv_cache_config.copy_on_partial_reuse to false (docs/offload.md, Limits)"
        )


def lets_go_of_all() -> bool:
    """Whether the executor unpins every request that `get_finished` returns.

    The executor of variant A stops after the first, and the blocks of the others stay pinned until the server ends.
    """
    if "tensorrt_llm" not in sys.modules:
        return True
    executor = getattr(sys.modules.get(PY_EXECUTOR), "PyExecutor", None)
    return hasattr(executor, "_end_transfer_and_maybe_terminate")
