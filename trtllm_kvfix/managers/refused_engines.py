"""Checks of an engine that the manager's constructor cannot make. They run before it starts; ranks stop together."""

from typing import TYPE_CHECKING, Any

from trtllm_kvfix.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTING = "kvfix.manager: native"
WAY_OUT = "docs/native-manager.md lists what it serves; with `kvfix.manager: upstream` this engine starts"


def objection(settings: Settings, executor: Any) -> str:
    """Return the reason why this engine must not start. Empty if it may."""
    if settings.manager != "native":
        return ""
    return next((f"{SETTING}: {reason}. {WAY_OUT}" for reason in _reasons(executor)), "")


def _reasons(executor: Any) -> "Iterator[str]":
    manager = getattr(executor, "kv_cache_manager", None)
    if manager is None:
        managers = getattr(getattr(executor, "resource_manager", None), "resource_managers", {})
        manager = next((each for name, each in managers.items() if name.name == "KV_CACHE_MANAGER"), None)
    engine = getattr(executor, "model_engine", None)
    if any("auto_deploy" in each.__module__.split(".") for each in type(engine).__mro__):
        yield "AutoDeploy is not served: its engine has not been run with ours"
    kind = type(getattr(manager, "impl", None))
    if kind.__name__ != "NativeKvCache":
        yield (
            f"this engine's cache is {type(manager).__name__} over {kind.__name__}; ours replaces V1's bound one only. "
            "Usual cause: KVCacheManagerV2 is switched on, or the model has a cache of another kind"
        )
    if getattr(executor, "kv_cache_transceiver", None) is not None:
        yield "disaggregated serving is not served"
    if getattr(executor, "drafter", None) is not None or getattr(engine, "spec_config", None) is not None:
        yield "speculative decoding is not served"
    if getattr(executor, "draft_model_engine", None) is not None:
        yield "a draft model is not served"
    dist = getattr(executor, "dist", None)
    if getattr(dist, "pp_size", 1) > 1 or getattr(dist, "cp_size", 1) > 1:
        yield "pipelines and context parallelism are not served"
    if getattr(executor, "enable_attention_dp", False):
        yield "attention data parallelism is not served"
    if getattr(getattr(engine, "llm_args", None), "sleep_config", None) is not None:
        yield "sleeping is not served: our pools would stay awake"
    scheduler = getattr(executor, "scheduler", None)
    capacity = getattr(scheduler, "capacity_scheduler", None)
    if type(capacity).__name__ == "BindCapacityScheduler":
        yield "the bound capacity scheduler was made before ours could take its place"
