"""Holds the device in front of what each step writes until the host waits for that step: by then the host has prepared
the next one, and has reported stores of blocks that nothing has written. Holds transfers, too."""

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from trtllm_kvfix.native import Device, Mark
from trtllm_kvfix.offload.transfers import Transfers

from .stand_in import OffloadServer

WAIT_S = 30.0


class Held:
    """stores_go_first: let transfers end before the device goes on; only where they wait for nothing."""

    def __init__(self, server: OffloadServer, *, stores_go_first: bool = False) -> None:
        self._server = server
        self._stores_go_first = stores_go_first
        self._gates: deque[int] = deque()  # the loop's thread closes and opens them
        self._points = ExitStack()

    def __enter__(self) -> "Held":
        pauses = self._server.pauses
        self._points.enter_context(pauses.at(pauses.COMPUTE, self._hold))
        self._points.enter_context(pauses.at(pauses.WAIT_FOR_SAMPLE, self._let_go))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._points.close()
        while self._gates:
            self._server.tensors.open_gate(self._gates.popleft())

    def _hold(self) -> None:
        tensors = self._server.tensors
        self._gates.append(tensors.close_gate(tensors.current_stream()))

    def _let_go(self) -> None:
        if self._stores_go_first:
            for running in self._server.worker.side._transfers.running():
                assert running.lane.wait(running.job.number, WAIT_S)
        if self._gates:
            self._server.tensors.open_gate(self._gates.popleft())


def mark_behind(device: Device, gated: int) -> Callable[[Transfers, int], Mark]:
    """This takes the place of `Transfers.mark`: a transfer waits for this stream as well as for the one that computes.
    If it waited for this one alone, it could meet a step that still has its blocks."""

    def mark(self: Transfers, stream: int) -> Mark:
        computed = device.create_event()
        device.record(computed, stream)
        device.make_wait(gated, computed)
        device.destroy_event(computed)
        return self._marks.set(gated)

    return mark
