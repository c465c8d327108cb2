"""The stand-in's server with the connector in its configuration and every fix that its build needs, as users run it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any
from unittest import mock

from tests.standin.fixture import upstream
from tests.standin.serving import Server
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.native import Device
from trtllm_kvfix.offload.patches import RLHF
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, Upstream
from trtllm_kvfix.sections import Settings

TOKENS_PER_BLOCK = 4
BLOCK_BYTES = TOKENS_PER_BLOCK * 4 * 4  # words of four bytes
CREATOR = "tensorrt_llm._torch.pyexecutor.py_executor_creator"
CONNECTOR = {
    "connector_module": "trtllm_kvfix.offload",
    "connector_scheduler_class": "KvfixOffloadScheduler",
    "connector_worker_class": "KvfixOffloadWorker",
}


class OffloadServer(Server):
    @property
    def device(self) -> Device:
        device: Device = self.tensors.device
        return device

    @property
    def connector(self) -> Any:
        return self.executor.kv_connector_manager

    @property
    def worker(self) -> Any:
        return self.connector.worker

    @property
    def index(self) -> Any:
        return self.connector.scheduler.side.index

    @property
    def contents(self) -> Any:
        return self.executor.contents


@contextmanager
def offloading(
    variant: str, host_blocks: int, device_blocks: int, *, device: str | None = None, **settings: object
) -> Iterator[OffloadServer]:
    """settings: of `kvfix.offload`. Prompts of up to 96 tokens, computed in chunks, with overlap."""
    chosen = {"HOST_BYTES": host_blocks * BLOCK_BYTES} | {name.upper(): value for name, value in settings.items()}
    variables = {f"TRTLLM_KVFIX_OFFLOAD_{name}": str(value) for name, value in chosen.items()}
    with upstream(variant, device), mock.patch.dict("os.environ", variables), fixes_applied():
        with suppress(ModuleNotFoundError):
            import_module(RLHF)  # as Ray does before it makes a worker that is extended
        server = OffloadServer(
            {
                "max_seq_len": 96,
                "max_num_tokens": 48,
                "enable_chunked_prefill": True,
                "kv_cache_config": {
                    "tokens_per_block": TOKENS_PER_BLOCK,
                    "max_tokens": device_blocks * TOKENS_PER_BLOCK,
                    "copy_on_partial_reuse": variant != "A",  # there nothing orders the copies with their readers
                },
                "kv_connector_config": CONNECTOR,
            }
        )
        try:
            yield server
            server.close()
        finally:
            server.executor.shutdown()
            server.worker.shutdown()


@contextmanager
def fixes_applied() -> Iterator[None]:
    import_module(CREATOR)
    for place in CONNECTOR_PLACES:
        try:
            import_module(place)
        except ModuleNotFoundError:
            continue
    registry = Registry(ALL)
    registry.apply(Settings(), Upstream(), at_last=True)
    try:
        yield
    finally:
        assert registry.revert() == []
