"""What shipping and the fence leave behind at each call, once a server runs: nothing that wakes Python's garbage
collector.

What is allocated natively is counted in cpp/tests/staging/test_shipping_costs.cc.
"""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import trtllm_kvfix
from tests.executor.test_block_offsets_v2 import V2, Bench
from tests.fixes.applied import applied, standing_in
from tests.fixes.test_staged_offsets_v1 import Scene, by_pool
from tests.standin.fixture import upstream
from tests.standin.serving import Server
from trtllm_kvfix import native
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence
from trtllm_kvfix.staging import on_stream

CALLS = 300  # of a round
ROUNDS_MAX = 12
OURS = tracemalloc.Filter(True, f"{Path(trtllm_kvfix.__file__).parent}/*")  # its path may have several places


class Left(NamedTuple):
    containers: int  # that the collector counts
    held: int  # bytes that were allocated in our Python

    @property
    def nothing(self) -> bool:
        """Below 0 where it has used up what an earlier call left for the next ones."""
        return self.containers <= 0 and self.held <= 0


def left_behind(call: Callable[[], object], rounds: int = ROUNDS_MAX) -> Left:
    """What a round of calls leaves behind, by then: the first that leaves nothing is the last.

    Python keeps lists, tuples and frames that are freed for the next ones, up to 2,000 of a kind. Each call may add to
    these until they are full, which looks as if it left something behind. Looking takes some of them too, and not the
    same ones each time. So each round is compared with the one before, both at the same point: what comes and goes
    cannot grow from round to round.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(10):
            call()
        held = _held()
        for _ in range(rounds):
            containers, before = _containers_of_a_round(call), held
            held = _held()
            left = Left(containers, held - before)
            if left.nothing:
                break
    finally:
        tracemalloc.stop()
        gc.enable()
    return left


def _containers_of_a_round(call: Callable[[], object]) -> int:
    before = gc.get_count()[0]
    for _ in range(CALLS):
        call()
    return gc.get_count()[0] - before


def _held() -> int:
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([OURS]).traces)


def test_what_each_call_leaves_is_found() -> None:
    kept: list[object] = []
    assert left_behind(lambda: kept.append({len(kept)}), rounds=2).containers == CALLS


def test_what_our_python_keeps_at_each_call_is_found() -> None:
    device = native.open_device("cpu")
    fence, engines = InputFence(), []

    def call() -> None:
        engines.append(object())  # another one each time, for which the fence keeps a mark
        fence.record(engines[-1])

    with on_stream(device, device.create_stream()):
        assert left_behind(call, rounds=2).held > CALLS * 100


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


def test_the_fence_leaves_nothing_behind_from_the_first_round_on() -> None:
    """Nor does it take a list that Python then keeps."""
    device = native.open_device("cpu")
    stream = device.create_stream()
    fence, engine = InputFence(), object()
    prepare, schedule = fence.recording(lambda _engine: None), fence.waiting(lambda _executor: None)

    def call() -> None:
        prepare(engine)
        device.synchronize(stream)  # or some rounds would wait, and others not
        schedule(None)

    with on_stream(device, stream):
        assert left_behind(call, rounds=1).nothing
