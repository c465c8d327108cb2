"""Which manager class serves a model, and how managers and executor are made (surface 3)."""

from typing import Any

from ..._standin.tensors import tensors
from ..._standin.variant import NAME, since
from .model_engine import PyTorchModelEngine
from .py_executor import PyExecutor
from .resource_manager import CacheTypeCpp, KVCacheManager, ResourceManager, ResourceManagerType
from .sampler import TorchSampler
from .scheduler import BindCapacityScheduler, BindMicroBatchScheduler, SimpleScheduler


def _non_hybrid_kv_cache_manager_cls(kv_cache_config: Any) -> Any:
    assert not kv_cache_config.use_kv_cache_manager_v2
    return KVCacheManager


if NAME == "A":

    def get_kv_cache_manager_cls(model_config: Any) -> Any:
        del model_config
        return KVCacheManager

elif NAME == "B":

    def get_kv_cache_manager_cls(model_config: Any, kv_cache_config: Any) -> Any:  # type: ignore[misc]  by variant
        del model_config
        return _non_hybrid_kv_cache_manager_cls(kv_cache_config)

else:

    def get_kv_cache_manager_cls(  # type: ignore[misc]  by variant
        model_config: Any, kv_cache_config: Any, is_disagg: bool = False, cache_transceiver_config: Any = None
    ) -> Any:
        del model_config, is_disagg, cache_transceiver_config
        return _non_hybrid_kv_cache_manager_cls(kv_cache_config)


class KvCacheCreator:
    def __init__(self, *, llm_args: Any, model_engine: Any, kv_connector_manager: Any, execution_stream: Any) -> None:
        self._llm_args = llm_args
        self._model_engine = model_engine
        self._kv_connector_manager = kv_connector_manager
        self._execution_stream = execution_stream
        self._kv_cache_manager_cls = self._get_model_kv_cache_manager_cls(model_engine)

    def _get_model_kv_cache_manager_cls(self, model_engine: Any) -> Any:
        """Looks the global up when it is called, in every version read (surface 3.4)."""
        if NAME == "A":
            return get_kv_cache_manager_cls(model_engine.model_config)
        since_b = (self._llm_args.kv_cache_config,)
        chosen = get_kv_cache_manager_cls(model_engine.model_config, *since_b)  # type: ignore[call-arg]  by variant
        return self._fallback_if_unsupported_kv_cache_manager_v2(chosen)

    def _fallback_if_unsupported_kv_cache_manager_v2(self, kv_cache_manager_cls: Any) -> Any:
        return kv_cache_manager_cls

    def _create_kv_cache_manager(self, model_engine: Any, estimating_kv_cache: bool) -> Any:
        args = self._llm_args
        since_b: dict[str, Any] = {"is_estimating_kv_cache": estimating_kv_cache} if since("B") else {}
        if since("B"):
            since_b["execution_stream"] = self._execution_stream
        return self._kv_cache_manager_cls(
            args.kv_cache_config,
            CacheTypeCpp.SELF,
            num_layers=args.num_layers,
            num_kv_heads=1,
            head_dim=1,
            tokens_per_block=args.kv_cache_config.tokens_per_block,
            max_seq_len=args.max_seq_len,
            max_batch_size=args.max_batch_size,
            mapping=None,
            spec_config=args.speculative_config,
            max_num_tokens=args.max_num_tokens,
            model_config=model_engine.model_config,
            max_beam_width=args.max_beam_width,
            kv_connector_manager=None if estimating_kv_cache else self._kv_connector_manager,
            vocab_size=1000,
            **since_b,
        )

    def build_managers(self, resources: dict[Any, Any], estimating_kv_cache: bool = False) -> None:
        manager = self._create_kv_cache_manager(self._model_engine, estimating_kv_cache)
        resources[ResourceManagerType.KV_CACHE_MANAGER] = manager

    def teardown_managers(self, resources: dict[Any, Any]) -> None:
        resources.pop(ResourceManagerType.KV_CACHE_MANAGER).shutdown()


def create_py_executor_instance(
    *, llm_args: Any, resources: dict[Any, Any], model_engine: Any, kv_connector_manager: Any, execution_stream: Any
) -> PyExecutor:
    clash = set(resources) & set(llm_args.extra_resource_managers)
    if clash:
        raise ValueError(f"extra_resource_managers may not overwrite {sorted(map(str, clash))}")
    resource_manager = ResourceManager(resources | llm_args.extra_resource_managers)
    # The cache manager comes last of all (surface 3.2).
    resource_manager.resource_managers.move_to_end(ResourceManagerType.KV_CACHE_MANAGER)
    kv_cache_manager = resource_manager.get_resource_manager(ResourceManagerType.KV_CACHE_MANAGER)
    chunk_unit = kv_cache_manager.tokens_per_block if llm_args.enable_chunked_prefill else None
    scheduler = SimpleScheduler(
        BindCapacityScheduler(llm_args.max_batch_size, kv_cache_manager.impl),
        BindMicroBatchScheduler(llm_args.max_batch_size, llm_args.max_num_tokens, chunk_unit),
    )
    return PyExecutor(
        resource_manager,
        scheduler,
        model_engine,
        TorchSampler(),
        disable_overlap_scheduler=llm_args.disable_overlap_scheduler,
        kv_connector_manager=kv_connector_manager,
        execution_stream=execution_stream,
    )


def make_model_engine(llm_args: Any) -> PyTorchModelEngine:
    return PyTorchModelEngine(
        max_num_tokens=llm_args.max_num_tokens,
        max_batch_size=llm_args.max_batch_size,
        beam_width=llm_args.max_beam_width,
    )


def make_execution_stream() -> Any:
    return tensors().stream() if since("B") else None
