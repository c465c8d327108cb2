"""Holds the device in front of each step's input copies until the host waits for that step.

What holds them in the field is whatever precedes them on the stream: transfers of offloaded blocks, a graph, a draft
forward (surface 10). The loop runs one step ahead, so by the time the host waits for step N it has prepared step N+1. A
gate is closed before the copies of N and opened when the host begins to wait for N: the race is certain and not likely.

A host that waits for something else, such as a fence of ours or the end of a copy, is let pass, too: what stands in
front of that is let go when it begins to wait. Nothing else is.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tests.standin.heard import Mark, heard
from trtllm_kvfix import native


class Stall:
    def __init__(self, pauses: Any, tensors: Any, *, draft: bool = False, replay: bool = False) -> None:
        """draft: hold the draft model's copies and let the target's pass. replay: hold graphs, and let the copies pass
        that are enqueued before them.
        """
        self._pauses = pauses
        self._tensors = tensors
        self._lock = threading.Lock()  # guards what follows
        self._gates: dict[int, int] = {}  # by the number of the step
        # By an event, or by marks of streams: the step that was the last one when they were recorded.
        self._recorded: dict[Mark, int] = {}
        self.held = 0  # steps whose copies were held
        held = pauses.REPLAY if replay else pauses.FORWARD_DRAFT if draft else pauses.FORWARD
        # Steps are counted from the server's first one on: the loop may still wait for one that was enqueued before
        # anything was held. Not every step has a graph.
        self._counted = pauses.FORWARD if replay else held
        self._points = [
            pauses.at(held, self._hold),
            pauses.at(pauses.WAIT_FOR_SAMPLE, self._waits_for_sample),
        ]
        if not draft and not replay:
            # Upstream's fence waits for the target's copies alone (surface 2.4, window c).
            self._points.append(pauses.at(pauses.WAIT_FOR_INPUT_COPY, self._let_all_go))

    def __enter__(self) -> "Stall":
        for point in self._points:
            point.__enter__()
        _others.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _others.discard(self)
        for point in self._points:
            point.__exit__(kind, error, trace)
        self._let_all_go()

    def _hold(self) -> None:
        with self._lock:
            self.held += 1
            self._gates[self._step()] = self._tensors.close_gate(self._tensors.current_stream())

    def _step(self) -> int:
        return int(self._pauses.reached(self._counted))

    def _waits_for_sample(self) -> None:
        self._let_go(self._pauses.reached(self._pauses.WAIT_FOR_SAMPLE))

    def _let_all_go(self) -> None:
        self._let_go(self._step())

    def _let_go(self, last: int) -> None:
        """This step and those before it."""
        with self._lock:
            for step in [each for each in self._gates if each <= last]:
                self._tensors.open_gate(self._gates.pop(step))

    def concerns_this_thread(self) -> bool:
        return bool(self._pauses.may_be_reached_here())

    def others_record(self, mark: Mark) -> None:
        self._recorded[mark] = self._step()

    def others_wait(self, mark: Mark) -> None:
        self._let_go(self._recorded.get(mark, self._step()))

    def others_synchronize(self) -> None:
        self._let_all_go()


class _Others:
    """Hears what others than the stand-in ask of the device, for all stalls there are: servers may stand side by side.
    The stand-in's own events do not come this way."""

    def __init__(self) -> None:
        self._stalls: list[Stall] = []
        self._lock = threading.Lock()  # guards what stands here
        self._patches = ExitStack()

    def add(self, stall: Stall) -> None:
        with self._lock:
            if not self._stalls:
                self._patches.enter_context(heard(self))
            self._stalls = [*self._stalls, stall]

    def discard(self, stall: Stall) -> None:
        with self._lock:
            self._stalls = [each for each in self._stalls if each is not stall]
            if not self._stalls:
                self._patches.close()

    def _concerned(self) -> Iterator[Stall]:
        return (stall for stall in self._stalls if stall.concerns_this_thread())

    def records(self, _: native.Device, mark: Mark) -> None:
        for stall in self._concerned():
            stall.others_record(mark)

    def waits(self, _: native.Device, mark: Mark) -> None:
        for stall in self._concerned():
            stall.others_wait(mark)

    def synchronizes(self, _: native.Device) -> None:
        for stall in self._concerned():
            stall.others_synchronize()


_others = _Others()
