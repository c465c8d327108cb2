"""What shipping leaves behind at each call, once a server runs: nothing that wakes Python's garbage collector.

What is allocated natively is counted in cpp/tests/staging/test_shipping_costs.cc.
"""

import gc
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import pytest

import trtllm_kvfix
from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import applied, standing_in
from tests.fixes.test_staged_offsets_v1 import Scene, by_pool
from tests.standin.fixture import upstream
from tests.standin.serving import Server

CALLS = 300
OURS = tracemalloc.Filter(True, f"{trtllm_kvfix.__path__[0]}/*")


class Left(NamedTuple):
    containers: int  # that the collector counts
    held: int  # bytes that were allocated in our Python

    @property
    def nothing(self) -> bool:
        return self.held == 0 and self.containers < CALLS / 4  # the stand-in's own


def left_behind(call: Callable[[], object]) -> Left:
    gc.collect()
    gc.disable()
    for _ in range(10):  # behind the collection, which gives back what Python keeps for its next lists and tuples
        call()
    tracemalloc.start()
    try:
        containers = gc.get_count()[0]
        for _ in range(CALLS):
            call()
        containers = gc.get_count()[0] - containers
        held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([OURS]).traces)
    finally:
        tracemalloc.stop()
        gc.enable()
    return Left(containers, held)


def test_v1_leaves_nothing_behind() -> None:
    with upstream("B"):
        scene = Scene(2)
        statements = by_pool(3)

        def call() -> None:
            with scene.tensors.on(scene.stream):
                scene.destination.begin()
                statements(scene.destination, scene.table)
                scene.destination.flush()
            scene.stream.synchronize()

        assert left_behind(call).nothing
        kept: list[object] = []
        assert not left_behind(lambda: kept.append([])).nothing


def test_upstreams_v1_method_leaves_nothing_behind() -> None:
    with standing_in("C"), applied(["staged-offsets-v1"]):
        server = Server({})
        stream, manager = server.tensors.stream(), server.manager
        destination = server.tensors.on_device(manager.num_pools, 4, 2, manager.max_blocks_per_seq)

        def call() -> None:
            with server.tensors.on(stream):
                manager.copy_batch_block_offsets(destination, [], 1, 0, 0)
            stream.synchronize()

        assert left_behind(call).nothing
        server.close()


@pytest.mark.parametrize("variant", ["C", "D"])
def test_v2_leaves_nothing_behind(variant: str) -> None:
    with standing_in(variant), applied(["staged-offsets-v2"]):
        bench = Bench(V2)
        for request_id in range(4):
            bench.add(request_id, 9)

        def call() -> None:
            bench.ship(0, [0, 1, 2, 3])
            bench.stream.synchronize()

        assert left_behind(call).nothing
        bench.server.close()
