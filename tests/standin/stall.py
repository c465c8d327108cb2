"""Holds the device in front of each step's input copies until the host waits for that step.

What holds them in the field is whatever precedes them on the stream: transfers of offloaded blocks, a graph, a draft
forward (surface 10). The loop runs one step ahead, so by the time the host waits for step N it has prepared step N+1. A
gate is closed before the copies of N and opened when the host begins to wait for N: the race is certain and not likely.
"""

import threading
from collections import deque
from types import ModuleType, TracebackType
from typing import Any

# A fence that the stand-in does not know of blocks the host between two points of the loop. Nothing tells us so, but
# the second point does not come; a host that is not blocked takes microseconds.
BLOCKED_S = 0.25


class Stall:
    def __init__(self, pauses: ModuleType | Any, tensors: Any, *, draft: bool = False, replay: bool = False) -> None:
        """draft: hold the draft model's copies and let the target's pass. replay: hold graphs, and let the copies pass
        that are enqueued before them; what may block the host then stands where it writes the tables of LoRA.
        """
        self._pauses = pauses
        self._tensors = tensors
        self._gates: deque[int] = deque()
        self._changed = threading.Condition()  # guards what is above and below
        self._between = False  # the two points, where a fence may block the host
        self._stopping = False
        self.held = 0  # steps whose copies were held
        held = pauses.REPLAY if replay else pauses.FORWARD_DRAFT if draft else pauses.FORWARD
        before, after = pauses.CALL_SCHEDULE, pauses.BEGIN_SCHEDULE
        if replay:
            before, after = pauses.WRITE_LORA, pauses.LORA_WRITTEN
        self._points = [
            pauses.at(held, self._hold),
            pauses.at(pauses.WAIT_FOR_SAMPLE, self._let_one_go),
            pauses.at(before, self._calls),
            pauses.at(after, self._begins),
        ]
        if not draft and not replay:
            # Upstream's fence waits for the target's copies alone (surface 2.4, window c).
            self._points.append(pauses.at(pauses.WAIT_FOR_INPUT_COPY, self._let_all_go))
        self._watcher = threading.Thread(target=self._watch, name="stall", daemon=True)

    def __enter__(self) -> "Stall":
        for point in self._points:
            point.__enter__()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for point in self._points:
            point.__exit__(kind, error, trace)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._watcher.join()
        self._let_all_go()

    def _hold(self) -> None:
        with self._changed:
            self._gates.append(self._tensors.close_gate(self._tensors.current_stream()))
            self.held += 1

    def _let_one_go(self) -> None:
        with self._changed:
            if self._gates:
                self._tensors.open_gate(self._gates.popleft())

    def _let_all_go(self) -> None:
        while self._gates:
            self._let_one_go()

    def _calls(self) -> None:
        self._set_between(True)

    def _begins(self) -> None:
        self._set_between(False)

    def _set_between(self, between: bool) -> None:
        with self._changed:
            self._between = between
            self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._between or self._stopping)
                if self._stopping:
                    return
                began = self._changed.wait_for(lambda: not self._between or self._stopping, BLOCKED_S)
            if not began:
                self._let_all_go()
                with self._changed:
                    self._changed.wait_for(lambda: not self._between or self._stopping)
