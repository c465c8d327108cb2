"""What ranks that share a batch tell each other: digests of their books, and the clock of retention durations.

Each rank decides for itself from the same calls. If a rank ever decided otherwise, its part of an answer would silently
come from other blocks than the parts of the other ranks. So ranks compare digests while they run, and stop together
where these differ.

Ranks that looked at clocks of their own would evict different blocks. So rank 0 sends its time at fixed iterations, and
each rank sets its books to the time sent one such point earlier. That message was sent long ago, so no rank waits. The
clock is the same on every rank in every iteration.
"""

import time
from collections.abc import Callable
from itertools import count

from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.ranks import PATIENCE_S, Channel, Communicator, Patience, RanksDiffer, RankSilent, Tag, communicator

DIGEST_EVERY = 256  # iterations

_serials = count()  # counts managers: every rank makes the same ones in the same order


def next_serial() -> int:
    return next(_serials)


class RankComparison:
    """The comparisons of one manager. Only the executor's thread uses it."""

    def __init__(
        self,
        core: BlockManager,
        serial: int,
        *,
        find: Callable[[], Communicator | None] = communicator,
        every: int = DIGEST_EVERY,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._core = core
        self._find = find
        self._serial = serial
        self._every = every
        self._patience_s = patience_s
        self._iteration = 0

    def step(self) -> None:
        """Count one iteration. Every rank calls it in every iteration. Raises RanksDiffer on all ranks or on none."""
        self._iteration += 1
        if self._iteration % self._every:
            return
        comm = self._find()
        if comm is not None:
            self._compare(comm)

    def _compare(self, comm: Communicator) -> None:
        channel = Channel(comm, Tag.BOOKS, "did not compare its books")
        mine = (self._serial, self._iteration, self._core.digest())
        channel.send_to_others(mine)
        differing = [rank for rank in channel.others if self._word_of(channel, rank) not in (None, mine)]
        if differing:
            raise RanksDiffer(
                f"the books of this rank's KV cache differ from those of ranks {differing} in iteration "
                f"{self._iteration}; answers of this engine cannot be trusted. Usual causes: ranks that were scheduled "
                "other batches, a request whose tokens, LoRA or salt differ between ranks, or a program that pins "
                "blocks on one rank alone"
            )

    def _word_of(self, channel: Channel, rank: int) -> tuple[int, ...] | None:
        """Serial, iteration and digest; None if they do not come in time."""
        try:
            return channel.receive_since(rank, (self._serial, self._iteration), Patience(self._patience_s))
        except RankSilent as error:
            log.warning("%s", error)
            return None


TIME_EVERY = 16  # iterations


class Clock:
    """The clock of one manager. It stands still until a request has a duration: the same iteration on every rank."""

    def __init__(
        self,
        core: BlockManager,
        serial: int,
        *,
        find: Callable[[], Communicator | None] = communicator,
        now: Callable[[], float] = time.monotonic,
        every: int = TIME_EVERY,
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
