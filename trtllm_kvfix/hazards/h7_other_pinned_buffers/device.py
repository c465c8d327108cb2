"""H7 on a simulated device: a step's inputs are copied out of a pinned buffer, and the next step writes it again.

The engine's loop has a thread of its own: where a fix makes the host wait, one sees that it does.
"""

import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, Protocol

import numpy as np

from trtllm_kvfix.hazards.case import Arm, Comparison
from trtllm_kvfix.hazards.simulated import trial
from trtllm_kvfix.native import Device
from trtllm_kvfix.staging import on_stream

LIMIT_S, POLL_S = 60.0, 0.0005


class LoopArm(Arm):
    """A step writes a table and enqueues what reads it; the next step, in the loop's thread, writes the table again."""

    next_waits = True  # as long as the device has not read the table

    def __init__(self, device: Device, seed: int, shape: tuple[int, ...]) -> None:
        super().__init__(device, seed)
        self.table, self.seen = device.pinned(shape, "uint32"), device.empty(shape, "uint32")
        self._is_over = Event()  # the next step
        self._loop = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvfix-hazard-loop")
        self._next: Future[None] | None = None

    @abstractmethod
    def write_next(self) -> None:
        """Write the second step's table, as the loop does."""

    def prepare(self) -> None:
        self.steps = self.random.integers(1, 1 << 32, (2, *self.table.shape), np.uint32)

    def disturb(self) -> None:
        if not self.next_waits:
            self.write_next()
            return
        self._is_over.clear()
        waits, until = self.device.event_waits, time.monotonic() + LIMIT_S
        self._next = self._loop.submit(self._on_stream, self.write_next)
        self._next.add_done_callback(lambda _: self._is_over.set())
        while not self._is_over.wait(POLL_S) and self.device.event_waits == waits:
            if time.monotonic() > until:
                raise TimeoutError(f"the next step neither ended nor waited for the device within {LIMIT_S:g} s")

    def waiting(self) -> bool:
        does_wait = self._next is not None and not self._next.done()
        return super().waiting() and (does_wait or not self.next_waits)

    def wait_free(self) -> None:
        if self._next is not None:
            self._next.result()

    def settle(self) -> None:
        super().settle()
        self.wait_free()

    def compare(self) -> Comparison:
        """The device had to find the first step's table; in the end the second step's is there."""
        found = [self.device.download(self.seen, self.held), self.table.array.copy()]
        return Comparison(self.steps, np.stack(found))

    def close(self) -> None:
        self._loop.shutdown()
        super().close()

    def in_loop(self, work: Callable[[], None]) -> None:
        self._loop.submit(self._on_stream, work).result()

    def _on_stream(self, work: Callable[[], None]) -> None:
        with on_stream(self.device, self.held):
            work()


WORDS = 64


class FenceUnderTest(Protocol):
    """A fix that lets the loop go on once the device has read the last step's inputs."""

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]: ...
    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]: ...


class Loop(LoopArm):
    """Inputs of a step are prepared; then the loop schedules the next one, which may write any host buffer."""

    def __init__(self, fence: FenceUnderTest, device: Device, seed: int) -> None:
        super().__init__(device, seed, (WORDS,))
        self._prepare, self._schedule = fence.recording(self._copy), fence.waiting(self._write)

    def call(self) -> None:
        self.in_loop(lambda: self._prepare("engine"))  # one thread for both: a fence may keep its marks by thread

    def write_next(self) -> None:
        self._schedule("executor")

    def _copy(self, _engine: Any) -> None:
        self.table.array[:] = self.steps[0]
        self.device.copy(self.seen.address, self.table.address, self.table.nbytes, self.held)

    def _write(self, _executor: Any) -> None:
        self.table.array[:] = self.steps[1]


def self_test(build: Callable[[], FenceUnderTest]) -> None:
    trial(lambda device: Loop(build(), device, 0))
