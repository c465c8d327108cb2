"""Calls in threads of their own, which show by what other threads did meanwhile whether they kept the GIL.

No clock of the machine decides, so other work on it changes nothing: a thread that waits for the GIL never asks for it
(`stubborn_threads`), so that who runs was given it, and what a thread has done is its own processor time.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable

KEEPS_THE_GIL = ctypes.PyDLL(None)  # open() and read() would release it
READ_BYTES = 200


class Call:
    """A call in a thread that has the GIL when the call begins, and keeps it afterwards."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.returned = False
        self._took_s = 0.0
        self._call = call
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._begun.wait()  # for the GIL, too, which comes in the call, or after it

    def _run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._state = os.open(f"/proc/self/task/{threading.get_native_id()}/stat", os.O_RDONLY)
        self._before_s = time.clock_gettime(self._clock)
        self._begun.set()
        self._call()
        self._took_s = self._now_s()
        self.returned = True

    def _now_s(self) -> float:
        return time.clock_gettime(self._clock) - self._before_s

    def worked_s(self) -> float:
        """Processor time of the call so far."""
        return self._took_s if self.returned else self._now_s()

    def asleep(self) -> bool:
        """Whether it waits, for the GIL or for a lock; asking keeps the GIL."""
        line = ctypes.create_string_buffer(READ_BYTES)
        KEEPS_THE_GIL.pread(self._state, line, READ_BYTES, 0)
        return line.value.rpartition(b")")[2].split()[0] == b"S"

    def join(self) -> None:
        self._thread.join()
        os.close(self._state)
