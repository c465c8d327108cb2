"""A connector on a simulated device, with an executor around it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.offload import KvfixOffloadScheduler, KvfixOffloadWorker
from trtllm_kvfix.offload.patches import computing_failed_loads
from trtllm_kvfix.ranks import Ranks
from trtllm_kvfix.staging.place import on_stream

from .ends import wait_for_transfers
from .executor import BLOCK_WORDS, TOKENS_PER_BLOCK, Executor
from .upstream_double import ConnectorManager, Request, State

BLOCK_BYTES = 4 * BLOCK_WORDS
ConnectorManager.get_finished = computing_failed_loads(ConnectorManager.get_finished)  # type: ignore[method-assign]


class Clock:
    """In the place of `monotonic`; a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def llm_args() -> Any:
    return SimpleNamespace(kv_cache_config=SimpleNamespace(tokens_per_block=TOKENS_PER_BLOCK, host_cache_size=0))


def serve_alone(bench: "Bench", request: Request) -> int:
    """Counts its tokens that came from the host tier, when nothing is left in the device's."""
    executor = bench.executor
    executor.forget_device_cache()
    before = executor.loaded_tokens
    executor.submit(request)
    executor.run()
    bench.settle()
    assert request.state is State.GONE
    return executor.loaded_tokens - before


class Bench:
    """A device, an executor on it, and the connector between them: both sides on rank 0, elsewhere the worker's."""

    def __init__(
        self,
        device: Device,
        executor_class: type[Executor] = Executor,
        *,
        ranks: Ranks | None = None,
        manager_class: type[ConnectorManager] = ConnectorManager,
        **sizes: Any,
    ) -> None:
        args = llm_args()
        self.device = device
        self.is_unplugged = False
        self.scheduler: Any = None if ranks is not None and ranks.rank else KvfixOffloadScheduler(args)
        self.worker = KvfixOffloadWorker(args)
        self.manager = manager_class(self.worker, self.scheduler, ranks)
        with on_stream(device, 0):
            self.executor = executor_class(device, self.manager, **sizes)
        self.executor.idle = self.wait_for_a_transfer

    def wait_for_a_transfer(self, seconds: float = 0.05) -> None:
        """A loop with nothing else to do leaves the processor to the device."""
        transfers = self.worker.side._transfers
        for running in transfers.running()[:1] if transfers else []:
            running.lane.wait(running.job.number, seconds)

    def wait_for_transfers(self) -> None:
        wait_for_transfers(self.worker.side._transfers)

    def settle(self) -> None:
        """Requests are done. A store of one that was preempted, then cancelled, may outlive it; ranks call together."""
        self.wait_for_transfers()
        for request in self.manager.get_finished():
            self.executor._free(request)
        self.take_note()

    def take_note(self) -> None:
        """Lets the scheduler note transfers that have ended, though no step follows."""
        if self.scheduler is not None:
            self.scheduler.build_connector_meta(None)

    @property
    def index(self) -> Any:
        index = self.scheduler.side.index
        assert index is not None
        return index

    def close(self) -> None:
        if self.worker is not None:
            self.worker.shutdown()
        if not self.is_unplugged:
            self.executor.close()


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBench]:
    """make_bench(host_blocks, setting=value, ..., executor={...}); closed at the end, with everything given back."""
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime", numbered=True)))
    with ExitStack() as stack:

        def make(
            host_blocks: int = 256,
            *,
            seed: int = 1,
            executor_class: type[Executor] = Executor,
            manager_class: type[ConnectorManager] = ConnectorManager,
            executor: dict[str, Any] | None = None,
            **settings: Any,
        ) -> Bench:
            monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(host_blocks * BLOCK_BYTES))
            for name, value in settings.items():
                monkeypatch.setenv(f"TRTLLM_KVFIX_OFFLOAD_{name.upper()}", str(value))
            device = open_device("cpu", seed)
            bench = Bench(device, executor_class, manager_class=manager_class, **(executor or {}))
            stack.callback(bench.close)
            return bench

        yield make
