"""Small managers and requests of the installed TensorRT-LLM, made by its own constructors."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from trtllm_kvfix.hazards.ground import Ground, Unavailable
from trtllm_kvfix.overlay.upstream import BINDINGS, LLM_REQUEST, PACKAGE, RESOURCE_MANAGER, SCHEDULER, Upstream
from trtllm_kvfix.plurals import number_of

# Modules that a server imports anyway; the fixes wait for these.
MODULES = (BINDINGS, f"{PACKAGE}._torch.pyexecutor.py_executor_creator")
TOKENS_PER_BLOCK = 32
ROWS_MAX = 8


def imported() -> Upstream:
    for module in MODULES:
        import_module(module)
    return Upstream(may_import=True)


def manager(
    cls: Any, stream: Any, *, blocks: int = 64, blocks_per_seq: int = 8, reuse: bool = False, **more: Any
) -> Any:
    """A cache of two layers and one head. `stream` is what a forward step would run on."""
    options = {
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 64,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "max_seq_len": blocks_per_seq * TOKENS_PER_BLOCK,
        "max_batch_size": ROWS_MAX,
        "mapping": mapping(),
        "dtype": import_module(f"{PACKAGE}.bindings").DataType.HALF,
        "execution_stream": stream,
        "vocab_size": 1000,
        **more,
    }
    return cls(_config(blocks, reuse), import_module(BINDINGS).CacheType.SELF, **accepted(cls, options))


def mapping() -> Any:
    return import_module(f"{PACKAGE}.mapping").Mapping(world_size=1, tp_size=1, rank=0)


def _config(blocks: int, reuse: bool) -> Any:
    config = import_module(f"{PACKAGE}.llmapi.llm_args").KvCacheConfig
    options = {
        "max_tokens": blocks * TOKENS_PER_BLOCK,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "enable_block_reuse": reuse,
    }
    return config(**{name: value for name, value in options.items() if name in config.model_fields})


def metadata(up: Upstream, cache: Any, lengths: Any, request_ids: list[int], prompt_lens: list[int]) -> Any:
    """Attention's, where it owns the table of block offsets. Raises Unavailable where it wants what is not known."""
    cls: Any = up.attribute(up.attention_module, "TrtllmAttentionMetadata")
    options = {
        "max_num_requests": ROWS_MAX,
        "max_num_sequences": ROWS_MAX,
        "max_num_tokens": sum(prompt_lens),
        "kv_cache_manager": cache,
        "mapping": mapping(),
        "seq_lens": lengths,
        "num_contexts": len(request_ids),
        "request_ids": request_ids,
        "prompt_lens": prompt_lens,
        "kv_cache_params": _cache_params(up, len(request_ids)),
    }
    try:
        return cls(**accepted(cls, options))
    except TypeError as error:
        raise Unavailable(f"attention metadata cannot be made: {error}") from error


def _cache_params(up: Upstream, requests: int) -> Any:
    cls = up.attribute(f"{PACKAGE}._torch.metadata", "KVCacheParams")
    return None if cls is None else cls(use_cache=True, num_cached_tokens_per_seq=[0] * requests)


class Requests:
    """Requests of the V1 manager, and the steps that an executor takes with them."""

    def __init__(self, up: Upstream, cache: Any) -> None:
        resources = import_module(RESOURCE_MANAGER)
        self.cache = cache
        self._batch = import_module(SCHEDULER).ScheduledRequests
        self._request: Any = up.attribute(LLM_REQUEST, "LlmRequest")
        self.managers = resources.ResourceManager({resources.ResourceManagerType.KV_CACHE_MANAGER: cache})
        (dummy,) = cache.add_dummy_requests([0], [1], prepare_resource=False)
        self._sampling = dummy.sampling_config  # of the type that this build's requests take

    def make(self, request_id: int, prompt: Sequence[int], chunk: int | None = None) -> Any:
        made = self._request(
            request_id=request_id,
            max_new_tokens=2,
            input_tokens=list(prompt),
            sampling_config=self._sampling,
            is_streaming=False,
        )
        made.context_chunk_size = len(prompt) if chunk is None else chunk
        return made

    @classmethod
    def of_a_cache(cls, ground: Ground, up: Upstream, *, blocks: int, **more: Any) -> "Requests":
        """With reuse, and ten blocks for each."""
        kind = up.attribute(RESOURCE_MANAGER, "KVCacheManager")
        if kind is None:
            raise Unavailable("this TensorRT-LLM has no KVCacheManager")
        return cls(up, manager(kind, ground.stream(), blocks=blocks, blocks_per_seq=10, reuse=True, **more))

    def free_blocks(self) -> int:
        """Cached ones among them: they may be given to anybody."""
        return int(self.cache.impl.get_kv_cache_stats().free_num_blocks)

    def admit(self, requests: list[Any]) -> Any:
        batch = self._batch()
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests(requests)
        else:
            batch.context_requests = requests
        self.managers.prepare_resources(batch)
        return batch

    def step(self, requests: list[Any]) -> None:
        self.compute(self.admit(requests))

    def compute(self, batch: Any) -> None:
        """Reports a chunk of each as if the device had computed it."""
        for request in batch.context_requests:
            request.move_to_next_context_chunk()
        self.cache.update_resources(batch)

    def finish(self, request: Any) -> None:
        """With one token generated."""
        request.add_new_token(1, 0)
        self.managers.free_resources(request)

    def released(self, free: int) -> str | None:
        """Describe the blocks that were not released since `free` were free. None if all were."""
        left = free - self.free_blocks()
        return f"{number_of(left, 'block')} not released" if left else None


def accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that this build has a name for, or swallows."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in parameters}
