"""The clock of retention durations: rank 0's, and the same on every rank in every iteration.

Ranks that looked at clocks of their own would evict different blocks. So rank 0 sends its time at fixed iterations, and
each rank sets its books to the time sent one such point earlier. That message was sent long ago, so no rank waits.
"""

import time
from collections.abc import Callable

from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.ranks import PATIENCE_S, Channel, Communicator, Patience, RankSilent, Tag, communicator

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
            return
        channel = Channel(comm, Tag.TIME, "did not send its time")
        if comm.Get_rank() == 0:
            self._say(channel)
        elif self._iteration > self._every:
            self._hear(channel)

    def _hear(self, channel: Channel) -> None:
        point = (self._serial, self._iteration - self._every)
        try:
            _, _, milliseconds = channel.receive_since(0, point, Patience(self._patience_s))
        except RankSilent as error:
            log.warning("%s", error)
        else:
            self._core.advance_time(milliseconds)

    def _say(self, channel: Channel) -> None:
        if self._said is not None:
            self._core.advance_time(self._said)
        self._said = self._milliseconds()
        channel.send_to_others((self._serial, self._iteration, self._said))

    def _milliseconds(self) -> int:
        return int((self._now() - self._begin) * 1000)
