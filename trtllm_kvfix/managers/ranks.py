"""Ranks that share a batch compare digests of their books while they run, and stop together where these differ.

Each rank decides for itself from the same calls. If a rank ever decided otherwise, its part of an answer would silently
come from other blocks than the parts of the other ranks. Messages go from rank to rank with a tag of our own, because a
collective call could meet one of upstream's.
"""

import time
from collections.abc import Callable
from itertools import count

from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.overlay.agreement import POLL_S, Communicator, RanksDiffer, arrives, communicator

TAG = 27530
EVERY = 256  # iterations
# Ranks of one batch meet in every layer of a step, so one that is this late has ended, and upstream will say so.
PATIENCE_S = 30.0

_serials = count()  # counts managers: every rank makes the same ones in the same order
Word = tuple[int, int, int]  # manager, iteration, value


def next_serial() -> int:
    return next(_serials)


def heard(comm: Communicator, rank: int, tag: int, point: tuple[int, int], patience_s: float) -> Word | None:
    """The value that a rank sent for (manager, iteration); None if it does not come in time."""
    deadline = time.monotonic() + patience_s
    while arrives(comm, rank, tag, deadline, poll_s=POLL_S / 100):
        word: Word = comm.recv(source=rank, tag=tag)
        if word[:2] >= point:  # an older message came too late for its own iteration
            return word
    return None


class Comparison:
    """The comparisons of one manager. Only the executor's thread uses it."""

    def __init__(
        self,
        core: BlockManager,
        serial: int,
        *,
        find: Callable[[], Communicator | None] = communicator,
        every: int = EVERY,
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
        mine = (self._serial, self._iteration, self._core.digest())
        others = [rank for rank in range(comm.Get_size()) if rank != comm.Get_rank()]
        for rank in others:
            comm.send(mine, dest=rank, tag=TAG)
        differing = [rank for rank in others if self._word_of(comm, rank) not in (None, mine)]
        if differing:
            raise RanksDiffer(
                f"the books of this rank's KV cache differ from those of ranks {differing} in iteration "
                f"{self._iteration}; answers of this engine cannot be trusted. Usual causes: ranks that were scheduled "
                "other batches, a request whose tokens, LoRA or salt differ between ranks, or a program that pins "
                "blocks on one rank alone"
            )

    def _word_of(self, comm: Communicator, rank: int) -> Word | None:
        word = heard(comm, rank, TAG, (self._serial, self._iteration), self._patience_s)
        if word is None:
            log.warning("rank %d did not compare its books within %g s", rank, self._patience_s)
        return word
