"""The ground below scenarios: memory, streams, and a way to hold a stream. On a GPU all of it is torch's."""

import gc
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native

Table = npt.NDArray[np.int32]

PATIENCE_S = 0.5  # how long a waiting call is observed; a call that does not wait is over in less than a millisecond


class Unavailable(Exception):
    """This machine or build lacks what a scenario needs, so it says nothing."""


class NothingToShow(Exception):
    """This build lacks the feature that the scenario is about, so there is nothing to be right or wrong."""


class Ground:
    """Torch's, on its current GPU. Raises Unavailable where torch is missing or finds none."""

    def __init__(self) -> None:
        try:
            import torch  # noqa: PLC0415  the package does without it
        except ImportError:
            raise Unavailable("torch is not installed") from None
        if not torch.cuda.is_available():
            raise Unavailable("torch finds no CUDA GPU")
        self._torch = torch
        self._device = native.open_device(f"cuda:{torch.cuda.current_device()}")

    def stream(self) -> Any:
        return self._torch.cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        chosen: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return chosen

    def on_device(self, shape: tuple[int, ...]) -> Any:
        made = self._torch.zeros(shape, dtype=self._torch.int32, device="cuda")
        self._torch.cuda.synchronize()  # the zeros come on another stream than what a scenario writes there
        return made

    def pinned(self, shape: tuple[int, ...]) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.int32, pin_memory=True)

    def lengths(self, values: list[int]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.int)

    def read(self, target: Any, source: Any) -> None:
        """A copy that a graph may be captured of."""
        target.copy_(source, non_blocking=True)

    def held(self, stream: Any) -> AbstractContextManager[None]:
        """Hold the work that is enqueued inside until the block has ended."""
        return held(self._device, stream.cuda_stream)


@contextmanager
def held(device: native.Device, stream: int) -> Iterator[None]:
    """Hold the work that is enqueued inside until the block ends."""
    gate = device.close_gate(stream)
    try:
        yield
    finally:
        device.open_gate(gate)


class Watchdog:
    """Holds streams, one after the other. What is held at two of its looks, which are `look_s` apart, it lets go.

    Its thread does that, because the host may be waiting for the stream. It lasts as long as all holds: one that starts
    while a call is measured would take its time.
    """

    def __init__(self, look_s: float) -> None:
        self.too_late = threading.Event()  # a hold has been ended that way
        self._look_s = look_s
        self._lock = threading.Lock()  # guards the next two
        self._held: ExitStack | None = None
        self._seen: ExitStack | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kvfix-hazard-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    @contextmanager
    def holding(self, held: AbstractContextManager[None]) -> Iterator[None]:
        hold = ExitStack()
        with collecting_nothing():
            with self._lock:
                self._held = hold
                hold.enter_context(held)
            try:
                yield
            finally:
                with self._lock:
                    self._held = None
                    hold.close()

    def look(self) -> None:
        with self._lock:
            if self._held is not None and self._held is self._seen:
                self.too_late.set()
                self._held.close()
            self._seen = self._held

    def _watch(self) -> None:
        while not self._stopping.wait(self._look_s):
            self.look()


@contextmanager
def let_go_in_time(held: AbstractContextManager[None], patience_s: float = PATIENCE_S) -> Iterator[threading.Event]:
    """Hold a stream until the block has ended, or has taken too long: then the event says so."""
    with Watchdog(patience_s / 2) as watchdog, watchdog.holding(held):
        yield watchdog.too_late


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """A collection may free memory, and a driver waits for all streams before it does."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
