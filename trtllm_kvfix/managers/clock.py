"""The clock of retention durations: rank 0's, and the same on every rank in every iteration.

Ranks that looked at clocks of their own would evict different blocks. So rank 0 sends its time at fixed iterations, and
each rank sets its books to the time sent one such point earlier. That message was sent long ago, so no rank waits.
"""

import time
from collections.abc import Callable

from trtllm_kvfix.log import log
from trtllm_kvfix.managers.ranks import PATIENCE_S, Word, heard
from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.overlay.agreement import Communicator, communicator

TAG = 27531
EVERY = 16  # iterations


class Clock:
    """The clock of one manager. It stands still until a request has a duration: the same iteration on every rank."""

    def __init__(
        self,
        core: BlockManager,
        serial: int,
        *,
        find: Callable[[], Communicator | None] = communicator,
        now: Callable[[], float] = time.monotonic,
        every: int = EVERY,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._core = core
        self._serial = serial
        self._find = find
        self._now = now
        self._every = every
        self._patience_s = patience_s
        self._begin = now()
        self._iteration = 0
        self._runs = False
        self._said: int | None = None  # by rank 0, at the last point

    def start(self) -> None:
        self._runs = True

    def step(self) -> None:
        """Count one iteration. Every rank calls it in every iteration."""
        if not self._runs:
            return
        self._iteration += 1
        if self._iteration % self._every:
            return
        comm = self._find()
        if comm is None:
            self._core.advance_time(self._milliseconds())
        elif comm.Get_rank() == 0:
            self._say(comm)
        elif self._iteration > self._every:
            word = heard(comm, 0, TAG, (self._serial, self._iteration - self._every), self._patience_s)
            if word is None:
                log.warning("rank 0 did not send its time within %g s", self._patience_s)
            else:
                self._core.advance_time(word[2])

    def _say(self, comm: Communicator) -> None:
        if self._said is not None:
            self._core.advance_time(self._said)
        self._said = self._milliseconds()
        word: Word = (self._serial, self._iteration, self._said)
        for rank in range(1, comm.Get_size()):
            comm.send(word, dest=rank, tag=TAG)

    def _milliseconds(self) -> int:
        return int((self._now() - self._begin) * 1000)
