"""Engines whose remote tier is a dict that they share."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.offload.conftest import BLOCK_BYTES, Bench, MakeBench, make_bench

from .porter_double import Key, planted, sealed

__all__ = ["make_bench"]

MakeRemote = Callable[..., Bench]


@pytest.fixture
def memory() -> dict[Key, bytes]:
    return {}


@pytest.fixture
def make_remote(make_bench: MakeBench, memory: dict[Key, bytes], monkeypatch: pytest.MonkeyPatch) -> MakeRemote:
    """Makes a bench as make_bench does. `bench.worker.side.carrier.porter` is a PorterDouble."""
    planted(monkeypatch, memory)

    def make(host_blocks: int = 256, **settings: Any) -> Bench:
        usual = {"host_bytes": host_blocks * sealed(BLOCK_BYTES), "remote_min_reuse_blocks": 2}
        bench = make_bench(host_blocks, **usual | settings)
        bench.take_note = lambda: None  # type: ignore[method-assign]  # it would drop what is planned
        return bench

    return make
