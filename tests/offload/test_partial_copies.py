"""A load takes a block from which upstream is still copying a prefix to somebody else: the load comes behind the copy.

Chosen with a gate on the stream of upstream's copies, which opens when the load has been given to the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trtllm_kvfix.offload.connector import KvfixOffloadWorker
from trtllm_kvfix.offload.ledger import LoadJob

from .stand_in import OffloadServer, offloading

DEVICE_BLOCKS, HOST_BLOCKS = 8, 32
WAIT_S = 30.0
# In A nothing orders such copies with anybody; from B2 on requests are admitted in another order; and from C on the
# stand-in's books keep the source of a copy until the next step.
VARIANT = "B"

COMES_BACK = list(range(100, 121))  # five whole blocks in the host tier
COPIED_FROM = [900, 901, *range(200, 221)]
PASSES_BY = list(range(300, 307))
BEGINS_ALIKE = [900, 901, 77]


class CopiesHeld:
    """Upstream's copies wait from `close` to `open`."""

    def __init__(self, server: OffloadServer, *, loads_end_first: bool) -> None:
        self._server, self._loads_end_first = server, loads_end_first
        self._gate: int | None = None
        self.loads = 0  # that were under way while the copies waited

    def close(self) -> None:
        stream = self._server.manager.impl._pools._transfer_stream
        self._gate = self._server.tensors.close_gate(stream)

    def open(self) -> None:
        gate, self._gate = self._gate, None
        if gate is None:
            return
        for running in self.running_loads():
            self.loads += 1
            if self._loads_end_first:
                assert running.lane.wait(running.job.number, WAIT_S)
        self._server.tensors.open_gate(gate)

    def running_loads(self) -> list[Any]:
        running = self._server.worker.side._transfers.running()
        return [one for one in running if isinstance(one.job, LoadJob)]


@contextmanager
def scene(*, loads_end_first: bool) -> Iterator[tuple[OffloadServer, CopiesHeld]]:
    """The device holds one prompt alone, whose first block is the last but one that an allocation takes."""
    with offloading(VARIANT, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        for number, prompt in enumerate((COMES_BACK, COPIED_FROM, PASSES_BY), 1):
            server.run([server.request(number, prompt, 1)])
            settle(server)
        held = CopiesHeld(server, loads_end_first=loads_end_first)
        try:
            yield server, held
        finally:
            held.open()


def settle(server: OffloadServer) -> None:
    executor = server.executor
    with executor.response_cv:
        assert executor.response_cv.wait_for(lambda: not executor.async_transfer_manager.requests_in_transfer(), WAIT_S)


def copy_and_load(server: OffloadServer, held: CopiesHeld, *, loads: int = 1) -> set[int]:
    """Requests that read wrong values."""
    executor, pauses = server.executor, server.pauses
    requests = [server.request(11, BEGINS_ALIKE, 1), server.request(12, COMES_BACK, 1)]

    def begin() -> None:
        """The loop's thread begins, once nothing of what was before is left in the loop."""
        if requests and not executor.active_requests and executor.previous_batch is None:
            held.close()
            executor.enqueue_requests([requests.pop(0), requests.pop(0)])

    with pauses.at(pauses.CALL_SCHEDULE, begin), pauses.at(pauses.COMPUTE, held.open):
        executor.enqueue_cancel_request(0)  # wakes the loop
        assert executor.await_responses([11, 12], WAIT_S) is not None
        server.close()
    server.contents.judge()
    assert held.loads == loads
    return set(server.contents.corrupt)


def test_a_load_waits_for_copies_from_the_blocks_that_it_takes() -> None:
    with scene(loads_end_first=False) as (server, held):
        assert copy_and_load(server, held) == set()


def test_a_load_that_overtakes_them_brings_foreign_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: loads that come behind the stream that they are given, and no other."""
    monkeypatch.setattr(KvfixOffloadWorker, "follow_copies", lambda *_: None)
    with scene(loads_end_first=True) as (server, held):
        assert copy_and_load(server, held) == {11}
