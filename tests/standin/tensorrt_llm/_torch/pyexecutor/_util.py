"""The class of manager that serves a model is chosen here, and managers and executor are made (surface 3)."""

from typing import Any

from ..._standin.engine import Engine
from ..._standin.tensors import tensors
from ..._standin.variant import NAME, since
from ..attention_backend.sparse.dsa import DSACacheManager
from ..auto_deploy.shim.ad_executor import ADEngine
from ..auto_deploy.shim.interface import make_kv_cache_manager
from .mamba_cache_manager import MambaHybridCacheManager
from .model_engine import PyTorchModelEngine
from .py_executor import PyExecutor
from .resource_manager import CacheTypeCpp, KVCacheManager, ResourceManager, ResourceManagerType
from .sampler import TorchSampler
from .scheduler import BindCapacityScheduler, BindMicroBatchScheduler, SimpleScheduler

if since("B"):
    from .scheduler_v2 import KVCacheV2DummyScheduler, KVCacheV2Scheduler


if NAME == "B":
    from .resource_manager import KVCacheManagerV2
elif since("D"):
    from .kv_cache.kv_cache_manager_v2 import KVCacheManagerV2  # type: ignore[assignment]  # by variant
elif since("B2"):
    from .kv_cache_manager_v2 import KVCacheManagerV2  # type: ignore[assignment]  # by variant


def _special_kv_cache_manager_cls(model_config: Any) -> Any:
    """The class for architectures that have a manager of their own; None for the others."""
    if model_config.architecture == "minimax_m3":
        from ..attention_backend.sparse.minimax_m3 import MiniMaxM3KVCacheManagerV2  # noqa: PLC0415  as models are

        return MiniMaxM3KVCacheManagerV2
    if model_config.architecture == "deepseek_v4":
        from ..attention_backend.sparse.deepseek_v4.cache_manager import DeepseekV4CacheManager  # noqa: PLC0415

        return DeepseekV4CacheManager
    return {"sparse": DSACacheManager, "hybrid": MambaHybridCacheManager}.get(model_config.architecture)


def _non_hybrid_kv_cache_manager_cls(kv_cache_config: Any) -> Any:
    return KVCacheManagerV2 if kv_cache_config.use_kv_cache_manager_v2 else KVCacheManager


if NAME == "A":

    def get_kv_cache_manager_cls(model_config: Any) -> Any:
        return _special_kv_cache_manager_cls(model_config) or KVCacheManager

elif NAME == "B":

    def get_kv_cache_manager_cls(model_config: Any, kv_cache_config: Any) -> Any:  # type: ignore[misc]  # by variant
        return _special_kv_cache_manager_cls(model_config) or _non_hybrid_kv_cache_manager_cls(kv_cache_config)

else:

    def get_kv_cache_manager_cls(  # type: ignore[misc]  # by variant
        model_config: Any, kv_cache_config: Any, is_disagg: bool = False, cache_transceiver_config: Any = None
    ) -> Any:
        del is_disagg, cache_transceiver_config
        return _special_kv_cache_manager_cls(model_config) or _non_hybrid_kv_cache_manager_cls(kv_cache_config)


class KvCacheCreator:
    def __init__(
        self,
        *,
        llm_args: Any,
        model_engine: Any,
        draft_model_engine: Any,
        kv_connector_manager: Any,
        execution_stream: Any,
    ) -> None:
        self._llm_args = llm_args
        self._model_engine = model_engine
        self._draft_model_engine = draft_model_engine
        self._kv_connector_manager = kv_connector_manager
        self._execution_stream = execution_stream
        self._kv_cache_manager_cls = self._get_model_kv_cache_manager_cls(model_engine)

    def _get_model_kv_cache_manager_cls(self, model_engine: Any) -> Any:
        """Looks the global up when it is called, in every version read (surface 3.4)."""
        if NAME == "A":
            return get_kv_cache_manager_cls(model_engine.model_config)
        since_b = (model_engine.model_config, self._llm_args.kv_cache_config)
        chosen = get_kv_cache_manager_cls(*since_b)  # type: ignore[call-arg]  # by variant
        return self._fallback_if_unsupported_kv_cache_manager_v2(chosen)

    def _fallback_if_unsupported_kv_cache_manager_v2(self, kv_cache_manager_cls: Any) -> Any:
        """The module's own V1 class serves connectors and beams (surface 3.1)."""
        if not issubclass(kv_cache_manager_cls, KVCacheManagerV2):
            return kv_cache_manager_cls
        connected = self._kv_connector_manager is not None and not since("F")
        unsupported = connected or self._llm_args.max_beam_width > 1
        return KVCacheManager if unsupported else kv_cache_manager_cls

    def _create_kv_cache_manager(self, model_engine: Any, *, estimating_kv_cache: bool, is_draft: bool = False) -> Any:
        args = self._llm_args
        if args.backend == "_autodeploy":
            return make_kv_cache_manager(args, self._execution_stream)
        later: dict[str, Any] = {}  # keywords that came with later variants (surface 1.2)
        if since("B"):
            later |= {"is_estimating_kv_cache": estimating_kv_cache, "execution_stream": self._execution_stream}
        if since("D"):
            later["enable_chunked_prefill"] = args.enable_chunked_prefill
        return self._kv_cache_manager_cls(
            args.kv_cache_config,
            CacheTypeCpp.SELFKONLY if args.architecture == "sparse" else CacheTypeCpp.SELF,
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
            is_draft=is_draft,
            kv_connector_manager=None if estimating_kv_cache or is_draft else self._kv_connector_manager,
            vocab_size=1000,
            **later,
        )

    def build_managers(self, resources: dict[Any, Any], estimating_kv_cache: bool = False) -> None:
        resources[ResourceManagerType.KV_CACHE_MANAGER] = self._create_kv_cache_manager(
            self._model_engine, estimating_kv_cache=estimating_kv_cache
        )
        if self._draft_model_engine is not None:
            resources[ResourceManagerType.DRAFT_KV_CACHE_MANAGER] = self._create_kv_cache_manager(
                self._draft_model_engine, estimating_kv_cache=estimating_kv_cache, is_draft=True
            )

    def teardown_managers(self, resources: dict[Any, Any]) -> None:
        for manager in resources.values():
            manager.shutdown()
        resources.clear()


def create_py_executor_instance(
    *,
    llm_args: Any,
    resources: dict[Any, Any],
    model_engine: Any,
    draft_model_engine: Any,
    kv_connector_manager: Any,
    execution_stream: Any,
) -> PyExecutor:
    clash = set(resources) & set(llm_args.extra_resource_managers)
    if clash:
        raise ValueError(f"extra_resource_managers may not overwrite {sorted(map(str, clash))}")
    resource_manager = ResourceManager(resources | llm_args.extra_resource_managers)
    # The cache manager comes last of all (surface 3.2).
    resource_manager.resource_managers.move_to_end(ResourceManagerType.KV_CACHE_MANAGER)
    return PyExecutor(
        resource_manager,
        _make_scheduler(llm_args, resource_manager.get_resource_manager(ResourceManagerType.KV_CACHE_MANAGER)),
        model_engine,
        TorchSampler(),
        draft_model_engine=draft_model_engine,
        disable_overlap_scheduler=llm_args.disable_overlap_scheduler,
        is_of_pipeline=llm_args.pipeline_parallel_size > 1,
        kv_connector_manager=kv_connector_manager,
        execution_stream=execution_stream,
    )


def _make_scheduler(llm_args: Any, kv_cache_manager: Any) -> Any:
    batch_size, num_tokens = llm_args.max_batch_size, llm_args.max_num_tokens
    chunk_unit = kv_cache_manager.tokens_per_block if llm_args.enable_chunked_prefill else None
    micro_batches = BindMicroBatchScheduler(batch_size, num_tokens, chunk_unit)
    if not llm_args.kv_cache_config.use_kv_cache_manager_v2 or isinstance(kv_cache_manager, KVCacheManager):
        return SimpleScheduler(BindCapacityScheduler(batch_size, kv_cache_manager.impl), micro_batches)
    if since("B2"):
        return KVCacheV2Scheduler(batch_size, num_tokens, kv_cache_manager, chunk_unit)
    return SimpleScheduler(KVCacheV2DummyScheduler(batch_size, kv_cache_manager), micro_batches)


def make_model_engines(llm_args: Any) -> tuple[Engine, Engine | None]:
    """The target's, and the draft's where a draft model of its own proposes tokens (surface 2.4, window c)."""
    engine_class = ADEngine if llm_args.backend == "_autodeploy" else PyTorchModelEngine
    sizes = {"max_num_tokens": llm_args.max_num_tokens, "max_batch_size": llm_args.max_batch_size}
    options = {"beam_width": llm_args.max_beam_width, "chunked_prefill": llm_args.enable_chunked_prefill}
    options |= {"architecture": llm_args.architecture, "num_layers": llm_args.num_layers}
    target = engine_class(**sizes, **options)
    if llm_args.lora_config is not None and isinstance(target, PyTorchModelEngine):
        target.init_cuda_graph_lora_manager(llm_args.lora_config)
    if llm_args.speculative_config is None:
        return target, None
    draft = engine_class(**sizes, **options)
    draft.kv_cache_manager_key = ResourceManagerType.DRAFT_KV_CACHE_MANAGER
    draft.is_draft_model = True
    return target, draft


def make_execution_stream() -> Any:
    return tensors().stream() if since("B") else None
