"""CUDA graphs that another thread captures, as torch does by default, exactly while a call of ours runs.

In that mode any thread that asks the driver for something unsafe, such as the state of an event, is refused, and the
capture fails as well. So a capture that goes wrong was spoilt by the call.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LIMIT_S = 60


class Captures:
    def __init__(self) -> None:
        self.made = 0
        self.spoilt: list[str] = []
        self._is_running = False
        self._wanted, self._begun, self._over = (threading.Semaphore(0) for _ in range(3))
        self._thread = threading.Thread(target=self._capture_when_asked, daemon=True)
        self._thread.start()

    @contextmanager
    def around(self) -> Iterator[None]:
        """A graph is being captured while the block runs."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """No graph is being captured while the block runs, which calls what spoils captures and is not ours."""
        was_running = self._is_running
        if was_running:
            self._end()
        try:
            yield
        finally:
            if was_running:
                self._begin()

    def _begin(self) -> None:
        self._wanted.release()
        assert self._begun.acquire(timeout=LIMIT_S)
        self._is_running = True

    def _end(self) -> None:
        self._is_running = False
        self._over.release()
        assert self._begun.acquire(timeout=LIMIT_S)

    def _capture_when_asked(self) -> None:
        values = torch.zeros(16, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            while True:
                self._wanted.acquire()
                graph = torch.cuda.CUDAGraph()
                try:
                    graph.capture_begin()
                    self._begun.release()
                    assert self._over.acquire(timeout=LIMIT_S)
                    values += 1
                    graph.capture_end()
                    self.made += 1
                except RuntimeError as error:
                    self.spoilt.append(str(error))
                finally:
                    self._begun.release()
