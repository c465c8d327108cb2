"""The TensorRT-LLM that is installed, and managers of it that hold nothing but dummy requests."""

import inspect
from importlib import import_module
from typing import Any

import pytest

from trtllm_kvfix.overlay.upstream import Upstream

pytest.importorskip("tensorrt_llm", reason="needs TensorRT-LLM")

# What is imported anyway when a server starts; fixes wait for these.
MODULES = (
    "tensorrt_llm.bindings.internal.batch_manager",
    "tensorrt_llm._torch.pyexecutor.py_executor_creator",
)
TOKENS_PER_BLOCK = 32
LENGTHS = {1: 70, 2: 40, 3: 100, 4: 33}  # tokens, by request id


def imported() -> Upstream:
    for module in MODULES:
        import_module(module)
    return Upstream(may_import=True)


def make_manager(cls: Any, stream: Any) -> Any:
    """A small cache that four dummy requests sit in. `stream` is what a forward step would run on."""
    options: dict[str, Any] = {
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 64,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "max_seq_len": 128,
        "max_batch_size": 8,
        "mapping": import_module("tensorrt_llm.mapping").Mapping(world_size=1, tp_size=1, rank=0),
        "dtype": import_module("tensorrt_llm.bindings").DataType.HALF,
    }
    # Some builds swallow what they do not know; those that do not must have the name.
    accepted = inspect.signature(cls.__init__).parameters
    swallows = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in accepted.values())
    later = {"execution_stream": stream, "vocab_size": 1000}
    options |= {name: value for name, value in later.items() if name in accepted or swallows}
    config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConfig(max_tokens=2048, enable_block_reuse=False)
    cache_type = import_module("tensorrt_llm.bindings.internal.batch_manager").CacheType.SELF
    manager = cls(config, cache_type, **options)
    assert manager.add_dummy_requests(list(LENGTHS), list(LENGTHS.values())) is not None
    return manager
