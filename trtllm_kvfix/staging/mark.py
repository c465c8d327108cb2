"""An event behind the work of one stream: a writer that waits for it may overwrite what was read up to there."""

import time
from contextlib import suppress

from trtllm_kvfix import native
from trtllm_kvfix.forks import HomeProcess
from trtllm_kvfix.staging.place import place_of_thread


class MovableMark:
    """Recording it again moves it behind the newer work as well. Not for two threads at once."""

    def __init__(self, device: native.Device, stream: int) -> None:
        self.stream = stream
        self._home = HomeProcess()
        self._device = device
        self._event = device.create_event()

    def record(self) -> None:
        self._device.record(self._event, self.stream)

    def done(self) -> bool:
        return self._device.done(self._event)

    def wait(self) -> float:
        """Wait, and return the seconds; 0 if the device had passed the mark already."""
        if self._device.done(self._event):
            return 0.0
        begin = time.perf_counter()
        self._device.wait(self._event)
        return time.perf_counter() - begin

    def __del__(self) -> None:
        with suppress(Exception):  # one that was never made, or a device that is gone
            if not self._home.left():
                self._device.destroy_event(self._event)


def stream_marks() -> native.StreamMarks:
    """Marks of the streams on which the calling thread enqueues work, one for each."""
    return native.StreamMarks(place_of_thread)
