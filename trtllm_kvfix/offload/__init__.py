"""The offload connector: a host tier for the KV cache of one node.

    kv_connector_config:
      connector_module: trtllm_kvfix.offload
      connector_scheduler_class: KvfixOffloadScheduler
      connector_worker_class: KvfixOffloadWorker

docs/offload.md describes it for operators. The classes are loaded when they are asked for: their bases are
TensorRT-LLM's where it is installed, and settings can be read without them.
"""

from typing import Any

__all__ = ["KvfixOffloadScheduler", "KvfixOffloadWorker"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trtllm_kvfix.offload import connector  # noqa: PLC0415  what keeps this module light

        return getattr(connector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its connector's classes are {__all__}")
