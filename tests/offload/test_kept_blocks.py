"""Two requests with one prompt end while it is being saved. The reuse tree has the blocks of the first, so no pin of
upstream's holds those of the second, which waits to see whether the first one's save succeeds. It does not.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device
from trtllm_kvfix.offload.patches import KeptBlocks
from trtllm_kvfix.offload.transfers import Transfers

from .held import mark_behind
from .stand_in import OffloadServer, offloading

DEVICE_BLOCKS, HOST_BLOCKS = 9, 32
WAIT_S = 30.0
ITERATIONS_OF_A_REQUEST = 4

PROMPT = list(range(100, 109))  # two whole blocks, three with the answer
TAKES_WHAT_IS_FREE = list(range(300, 323))  # six blocks: the unused ones, and those of the second request
FILLS_THE_DEVICE = list(range(400, 433))
FIRST, SECOND, TAKER, FILLER, RETURNING = range(1, 6)


class Gate:
    def __init__(self, device: Device, stream: int) -> None:
        self._device, self._gate = device, device.close_gate(stream)
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._device.open_gate(self._gate)


@contextmanager
def transfers_held(server: OffloadServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Transfers begin when the gate is open, which somebody who waits for one opens."""
    behind = server.device.create_stream()
    gate = Gate(server.device, behind)
    wait_for = Transfers.wait_for

    def opened(self: Transfers, jobs: Collection[int]) -> None:
        if jobs:
            gate.open()
        wait_for(self, jobs)

    with monkeypatch.context() as patch:
        patch.setattr(Transfers, "mark", mark_behind(server.device, behind))
        patch.setattr(Transfers, "wait_for", opened)
        yield gate


def end_while_saving(server: OffloadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's thread empties the tier once both are over, so the save under way counts for nothing."""
    executor, pauses = server.executor, server.pauses
    iterations = 0

    with transfers_held(server, monkeypatch) as gate:

        def step() -> None:
            nonlocal iterations
            if SECOND not in executor.responses:
                return
            if iterations == 0:
                server.index.drop()
                executor.enqueue_requests([server.request(TAKER, TAKES_WHAT_IS_FREE, 1)])
            iterations += 1
            if iterations == ITERATIONS_OF_A_REQUEST:
                gate.open()
            executor.enqueue_cancel_request(0)  # wakes a loop that has nothing to do
            with executor.response_cv:
                executor.response_cv.notify_all()

        with pauses.at(pauses.CALL_SCHEDULE, step):
            executor.enqueue_requests([server.request(FIRST, PROMPT, 1), server.request(SECOND, PROMPT, 1)])
            assert executor.await_responses([FIRST, SECOND, TAKER], WAIT_S) is not None
            with executor.response_cv:
                in_transfer = executor.async_transfer_manager.requests_in_transfer
                assert executor.response_cv.wait_for(lambda: iterations >= ITERATIONS_OF_A_REQUEST, WAIT_S)
                assert executor.response_cv.wait_for(lambda: not in_transfer(), WAIT_S)


def serve_again(server: OffloadServer, *, blocks_loaded: int = 2) -> None:
    """The blocks come from the host tier, for nothing of the prompt is left on the device."""
    loaded = counters.offload_loaded_blocks.value
    server.run([server.request(FILLER, FILLS_THE_DEVICE, 1)])
    server.run([server.request(RETURNING, PROMPT, 1)])
    server.close()
    server.contents.judge()
    assert counters.offload_loaded_blocks.value - loaded == blocks_loaded


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_being_saved_is_nobody_elses(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        end_while_saving(server, monkeypatch)
        serve_again(server)
        assert server.contents.corrupt == []
        assert len(server.worker.kept) == 0
        assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0


@pytest.mark.parametrize("variant", ["A", "B", "B2"])
def test_blocks_that_go_at_once_are_saved_with_foreign_values(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a request's blocks go when upstream ends it."""
    monkeypatch.setattr(KeptBlocks, "keeps", lambda *_: False)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        end_while_saving(server, monkeypatch)
        serve_again(server)
        assert set(server.contents.corrupt) == {RETURNING}
