"""The engine's loop in a thread of its own: where a fix makes the host wait, one sees that it does."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Event
from typing import Any, cast

from trtllm_kvfix.native import Device
from trtllm_kvfix.staging import on_stream

LIMIT_S = 60.0


class _ReportingDevice:
    """A device that reports when a thread is about to wait for an event."""

    def __init__(self, device: Device, blocked: Event) -> None:
        self._device = device
        self._blocked = blocked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def wait(self, event: int) -> None:
        self._blocked.set()
        self._device.wait(event)


class HostThread:
    """Its work runs with the stream as torch's current one."""

    def __init__(self, device: Device, stream: int) -> None:
        self._blocked = Event()  # the work that has begun is, or has ended
        self._device = cast("Device", _ReportingDevice(device, self._blocked))
        self._stream = stream
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvfix-hazard-host")
        self._begun: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        self._pool.submit(self._run, work).result()

    def begin(self, work: Callable[[], None]) -> None:
        """Return when the work waits for the device, or is over."""
        self._blocked.clear()
        self._begun = self._pool.submit(self._run, work)
        self._begun.add_done_callback(lambda _: self._blocked.set())
        if not self._blocked.wait(LIMIT_S):
            raise TimeoutError(f"the next step neither ended nor waited for the device within {LIMIT_S:g} s")

    def waits(self) -> bool:
        return self._begun is not None and not self._begun.done()

    def finish(self) -> None:
        if self._begun is not None:
            self._begun.result()

    def close(self) -> None:
        self._pool.shutdown()

    def current(self) -> AbstractContextManager[None]:
        """What is enqueued inside, in whatever thread, is on the stream, and waits for it are seen."""
        return on_stream(self._device, self._stream)

    def _run(self, work: Callable[[], None]) -> None:
        with self.current():
            work()
