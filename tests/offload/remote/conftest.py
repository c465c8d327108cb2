"""Engines whose remote tier is a dict that they share."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.offload.conftest import Bench, MakeBench, make_bench
from trtllm_kvfix.offload.remote import start, worker
from trtllm_kvfix.offload.remote.messages import Spec

from .fake_porter import FakePorter, Key

__all__ = ["make_bench"]

MakeRemote = Callable[..., Bench]
SETTINGS = {"remote_kind": "mooncake", "remote_master": "here:1", "remote_model": "m", "remote_min_reuse_blocks": 2}


@pytest.fixture
def memory() -> dict[Key, bytes]:
    return {}


@pytest.fixture
def make_remote(make_bench: MakeBench, memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch) -> MakeRemote:
    """As make_bench. `bench.worker.side.porter` is a FakePorter."""
    monkeypatch.setattr(start, "find_spec", lambda _: object())

    def make(host_blocks: int = 256, **settings: Any) -> Bench:
        pools: list[Any] = []

        def porter(spec: Spec, timeout_s: float) -> FakePorter:
            del timeout_s
            return FakePorter(spec, pools[0].address, memory)

        noting = worker.RemoteWorker._noting_the_pool

        def noting_here(side: Any, *args: Any) -> Any:
            pools.append(noting(side, *args))
            return pools[-1]

        with monkeypatch.context() as patch:
            patch.setattr(worker, "Porter", porter)
            patch.setattr(worker.RemoteWorker, "_noting_the_pool", noting_here)
            bench = make_bench(host_blocks, **SETTINGS | settings)
        bench.take_note = lambda: None  # type: ignore[method-assign]  # it would drop what is planned
        return bench

    return make
