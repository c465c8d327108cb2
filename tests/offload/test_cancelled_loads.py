"""A request is cancelled while it loads. Nobody else has its blocks before the load is over, and nobody reuses them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.offload.patches import KeptBlocks

from .ends import wait_for_transfers
from .stand_in import OffloadServer, offloading
from .test_kept_blocks import FILLER, FILLS_THE_DEVICE, PROMPT, WAIT_S, transfers_held

DEVICE_BLOCKS, HOST_BLOCKS = 9, 32
CANCELLED, RUNS_BESIDE = 8, 9  # overlap loops look for cancelled requests behind a step


@contextmanager
def cancelled_while_it_loads(server: OffloadServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the load is held and the request is gone. Behind it, the load is over and the loop has nothing to do."""
    server.run([server.request(1, PROMPT, 1)])
    server.run([server.request(FILLER, FILLS_THE_DEVICE, 1)])
    executor = server.executor
    with transfers_held(server, monkeypatch) as gate:
        executor.enqueue_requests([server.request(CANCELLED, PROMPT, 1)])
        while CANCELLED not in server.worker.side.requests_in_transfer():
            assert executor.worker_thread.is_alive()
        executor.enqueue_cancel_request(CANCELLED)
        executor.enqueue_requests([server.request(RUNS_BESIDE, [1], 2)])
        assert executor.await_responses([CANCELLED, RUNS_BESIDE], WAIT_S) is not None
        yield
        gate.open()
    wait_for_transfers(server.worker.side._transfers)
    for number in range(10, 30):  # until an iteration has learnt of it
        server.run([server.request(number, [number], 1)])
        if not server.worker.side.requests_in_transfer():
            break


def books(server: OffloadServer) -> tuple[Any, ...]:
    """The books of requests: the connector's scheduler's, those of upstream's manager, and the blocks that are used."""
    connector = server.connector
    used = server.manager.impl.get_kv_cache_stats().used_num_blocks
    return dict(connector.scheduler.side._live), dict(connector.finished_async_loading_requests), used


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_blocks_stay_until_the_load_is_over(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with cancelled_while_it_loads(server, monkeypatch):
            assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 3
        server.close()
        assert books(server) == ({}, {}, 0)
        assert server.contents.corrupt == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_that_they_are_free_while_the_load_writes_them(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a request's blocks go when upstream ends it. The dead request stays in upstream's books."""
    monkeypatch.setattr(KeptBlocks, "keeps", lambda *_: False)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with cancelled_while_it_loads(server, monkeypatch):
            assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0
        server.close()
        assert list(books(server)[1]) == [CANCELLED]
