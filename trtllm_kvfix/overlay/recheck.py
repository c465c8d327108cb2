"""A thread that looks again every few seconds, for as long as an engine runs in this process.

What was true at the start may not be true now: another tool may take the place of what we put into upstream at any
time, and fixes count faults. So what a process attests is compared with upstream's objects again and again.
"""

import threading
from collections.abc import Callable

from trtllm_kvfix.forks import HomeProcess
from trtllm_kvfix.log import described, log

EVERY_S = 2.0


class Recheck:
    def __init__(self, look: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._look = look
        self._every_s = every_s
        self._over = threading.Event()
        self._home: HomeProcess | None = None  # where the thread runs: a child of fork() has none
        self._complained = False

    def start(self) -> None:
        """Once for each process, whatever number of engines it starts."""
        if self._home is not None and not self._home.left():
            return
        self._home, self._over = HomeProcess(), threading.Event()
        threading.Thread(target=self._run, args=(self._over,), name="kvfix-recheck", daemon=True).start()

    def stop(self) -> None:
        home, self._home = self._home, None
        if home is not None and not home.left():  # a child has the event's lock as it stood
            self._over.set()

    def _run(self, over: threading.Event) -> None:
        while not over.wait(self._every_s):
            try:
                self._look()
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    log.error("fixes could not be looked at again: %s. This is logged once", described(error))
