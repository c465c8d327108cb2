"""The smallest managers and requests of an installed TensorRT-LLM, made by its own constructors.

Nothing here knows this package: the scripts that `reproduce` prints contain what they need of it.
"""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

PYEXECUTOR = "tensorrt_llm._torch.pyexecutor"
BATCH_MANAGER = "tensorrt_llm.bindings.internal.batch_manager"
TOKENS_PER_BLOCK = 32
ROWS_MAX = 8  # requests in a batch
FIRST, SECOND = [1, 2], [3, 4]  # the requests of two batches
LENGTH = 2 * TOKENS_PER_BLOCK + 6  # of each


def manager(
    cls: Any, stream: Any, *, blocks: int = 64, blocks_per_seq: int = 8, reuse: bool = False, **more: Any
) -> Any:
    """A cache of two layers and one head. `stream` is what a forward step would run on, `more` what a class or its
    settings may take."""
    options = {
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 64,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "max_seq_len": blocks_per_seq * TOKENS_PER_BLOCK,
        "max_batch_size": ROWS_MAX,
        "mapping": mapping(),
        "dtype": import_module("tensorrt_llm.bindings").DataType.HALF,
        "execution_stream": stream,
        "vocab_size": 1000,
        **more,
    }
    tokens = blocks * TOKENS_PER_BLOCK
    config = _config(tokens_per_block=TOKENS_PER_BLOCK, max_tokens=tokens, enable_block_reuse=reuse, **more)
    return cls(config, import_module(BATCH_MANAGER).CacheType.SELF, **accepted(cls, options))


def offsets_shape(cache: Any) -> tuple[int, ...]:
    """Of the tensor on the device that block offsets are shipped to."""
    return (getattr(cache, "num_attention_op_pools", cache.num_pools), ROWS_MAX, 2, cache.max_blocks_per_seq)


def _config(**options: Any) -> Any:
    config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConfig
    return config(**{name: value for name, value in options.items() if name in config.model_fields})


def mapping() -> Any:
    return import_module("tensorrt_llm.mapping").Mapping(world_size=1, tp_size=1, rank=0)


def accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that this build has a name for, or swallows."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in parameters}


class Requests:
    """Requests of a manager, V1 unless another kind is given, and the steps that an executor takes with them."""

    def __init__(self, stream: Any, *, blocks: int, kind: Any = None, **more: Any) -> None:
        """A cache with reuse, and room for ten blocks of each."""
        resources = import_module(f"{PYEXECUTOR}.resource_manager")
        kind = kind or resources.KVCacheManager
        self.cache = cache = manager(kind, stream, blocks=blocks, blocks_per_seq=10, reuse=True, **more)
        self.managers = resources.ResourceManager({resources.ResourceManagerType.KV_CACHE_MANAGER: cache})
        (dummy,) = cache.add_dummy_requests([0], [1], prepare_resource=False)
        self._sampling = dummy.sampling_config  # of the type that this build's requests take

    def make(self, request_id: int, prompt: Sequence[int], chunk: int | None = None) -> Any:
        made = import_module(f"{PYEXECUTOR}.llm_request").LlmRequest(
            request_id=request_id,
            max_new_tokens=2,
            input_tokens=list(prompt),
            sampling_config=self._sampling,
            is_streaming=False,
        )
        made.context_chunk_size = len(prompt) if chunk is None else chunk
        return made

    def step(self, requests: list[Any]) -> None:
        self.compute(self.admit(requests))

    def admit(self, requests: list[Any]) -> Any:
        batch = import_module(f"{PYEXECUTOR}.scheduler").ScheduledRequests()
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests(requests)
        else:
            batch.context_requests = requests
        self.managers.prepare_resources(batch)
        return batch

    def compute(self, batch: Any) -> None:
        """Reports a chunk of each as if the device had computed it."""
        for request in batch.context_requests:
            request.move_to_next_context_chunk()
        self.cache.update_resources(batch)

    def finish(self, request: Any) -> None:
        """With one token generated."""
        request.add_new_token(1, 0)
        self.managers.free_resources(request)
