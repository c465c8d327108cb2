"""Gates that hold a stream, and the watchdog that opens one which would hold it for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from types import TracebackType

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import Device

HELD_S_MAX = 10.0  # an iteration takes well under a millisecond


class StuckBehindGate(KvfixError):
    """The host waited for a stream that only the host could have let go."""


class Gates:
    """Closes one gate at a time. A gate that stays closed for one to two times `held_s_max` is opened, and `open`
    reports it."""

    def __init__(self, device: Device, held_s_max: float = HELD_S_MAX) -> None:
        self._device = device
        self._held_s_max = held_s_max
        self._lock = Lock()  # guards what follows
        self._gate: int | None = None
        self._closed = 0  # gates closed so far
        self._seen = 0  # and when the watchdog last looked
        self._forced = False
        self._stopping = Event()
        self._watchdog = Thread(target=self._watch, name="kvfix-verify-watchdog", daemon=True)

    def __enter__(self) -> "Gates":
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._watchdog.join()

    @contextmanager
    def closed(self, stream: int) -> Iterator[None]:
        """Hold the stream until `open`, at the latest until the block ends: a held stream never drains."""
        with self._lock:
            self._gate = self._device.close_gate(stream)
            self._closed += 1
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        with self._lock:
            self._let_go()
            if self._forced:
                raise StuckBehindGate(
                    f"the host waited for a held stream for more than {self._held_s_max:g} s; what it calls must "
                    "return while the stream is pending. Usual cause: a ring without a free slot, or a driver that "
                    "waits for every stream"
                )

    def _let_go(self) -> None:
        if self._gate is not None:
            gate, self._gate = self._gate, None
            self._device.open_gate(gate)

    def look(self) -> None:
        """One round of the watchdog: open the gate if it was closed in the last round, too."""
        with self._lock:
            if self._gate is not None and self._closed == self._seen:
                self._forced = True
                self._let_go()
            self._seen = self._closed

    def _watch(self) -> None:
        while not self._stopping.wait(self._held_s_max):
            self.look()
