"""Engines whose remote tier is a dict that they share."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.offload.conftest import Bench, MakeBench, make_bench

from .fake_porter import Key, planted

__all__ = ["make_bench"]

MakeRemote = Callable[..., Bench]


@pytest.fixture
def memory() -> dict[Key, bytes]:
    return {}


@pytest.fixture
def make_remote(make_bench: MakeBench, memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch) -> MakeRemote:
    """As make_bench. `bench.worker.side.porter` is a FakePorter."""
    planted(monkeypatch, memory)

    def make(host_blocks: int = 256, **settings: Any) -> Bench:
        bench = make_bench(host_blocks, **{"remote_min_reuse_blocks": 2} | settings)
        bench.take_note = lambda: None  # type: ignore[method-assign]  # it would drop what is planned
        return bench

    return make
