"""These versions of the clients import and read things that the stand-in's B and C do not have: the connector has moved
since B, and reports have got more fields since C. Lent, so that the clients run there at all."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from trtllm_kvfix import native

OLD = "tensorrt_llm._torch.pyexecutor.kv_cache_connector"
FOLDER = "tensorrt_llm._torch.pyexecutor.connectors"


def lend() -> None:
    connector = f"{FOLDER}.kv_cache_connector"
    try:
        module: Any = import_module(connector)
    except ModuleNotFoundError:
        move(import_module(OLD))
    else:
        module.RequestData.priorities = None


def move(module: Any) -> None:
    """The module of earlier eras under its later name, with the report's later field."""
    sys.modules |= {FOLDER: ModuleType(FOLDER), f"{FOLDER}.kv_cache_connector": module}
    module.RequestData.priorities = None


class Hashes:
    """The hashes of the blocks that each request has filled, as later versions of upstream report them."""

    def __init__(self, tokens_per_block: int) -> None:
        self._config = native.BlockManagerConfig(tokens_per_block=tokens_per_block, blocks_primary=1)
        self._tokens: dict[int, list[int]] = {}

    def add(self, scheduler_output: Any) -> None:
        for data in scheduler_output.new_requests + scheduler_output.cached_requests:
            tokens = self._tokens.setdefault(data.request_id, [])
            tokens += data.new_tokens
            sequence = native.SequenceRequest(data.request_id, tokens)
            data.block_hashes = [one % 2**64 for one in native.block_hashes(sequence, self._config)]  # as upstream's


def lend_hashes(module: ModuleType, scheduler_name: str) -> None:
    base: Any = getattr(module, scheduler_name)

    class Scheduler(base):  # type: ignore[misc]
        def __init__(self, llm_args: Any) -> None:
            super().__init__(llm_args)
            self._hashes = Hashes(llm_args.kv_cache_config.tokens_per_block)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            self._hashes.add(scheduler_output)
            return super().build_connector_meta(scheduler_output)

    setattr(module, scheduler_name, Scheduler)
