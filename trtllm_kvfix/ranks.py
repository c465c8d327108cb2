"""How the ranks of one engine talk.

Messages go from rank to rank, each kind with a tag of its own (`Channel`). A collective call would not do: a rank
without the hook would join it with one of upstream's collectives, or never, and the others would wait without a limit.
Whoever waits for a message waits for a time, and a rank that stays silent is named (`RankSilent`).

Where upstream calls all ranks at the same points, they meet (`Ranks.gather`). Work of one rank that may fail lies
inside `agreed` or `together`, so that the others learn the reason. A rank that raised between two meetings would leave
them waiting in the next one, until their time is over.
"""

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import described

T = TypeVar("T")

# Ranks of one batch meet in every layer of a step, so one that is this late has ended, and upstream will say so.
PATIENCE_S = 30.0
# A message that is about to come is found at once; a wait that has lasted long may last a little longer.
PAUSE_MIN_S, PAUSE_MAX_S, PAUSES_PER_WAIT = 0.00002, 0.002, 64
STANDSTILL_S_MAX = 1.0


class Tag(IntEnum):
    """Every tag of ours. Upstream's own are far below."""

    ATTESTATION = 27510  # what a rank runs (overlay/start_gate.py)
    VERDICT = 27511  # rank 0's answer to it
    ADMISSION = 27520  # votes on a change of the batch (overlay/vote.py)
    BUDGET = 27521
    ROOM = 27522
    BOOKS = 27530  # digests of the native manager's books (managers/between_ranks.py)
    TIME = 27531  # rank 0's clock (managers/between_ranks.py)
    MEETING = 27540  # what each rank gives to `gather`


class RanksDiffer(KvfixError):
    """The ranks of one engine do not run the same, or do not hold the same."""


class RankSilent(KvfixError):
    """A rank has sent nothing in the time that it had."""


class RankFailed(KvfixError):
    """Another rank could not do its part."""


class Sending(Protocol):
    """The part of mpi4py's request that we use."""

    def test(self) -> tuple[bool, Any]: ...


class Communicator(Protocol):
    """The part of mpi4py's communicator that we use."""

    def Get_rank(self) -> int: ...  # noqa: N802
    def Get_size(self) -> int: ...  # noqa: N802
    def Iprobe(self, source: int, tag: int) -> bool: ...  # noqa: N802
    def send(self, obj: Any, dest: int, tag: int) -> None: ...
    def isend(self, obj: Any, dest: int, tag: int) -> Sending: ...
    def recv(self, *, source: int, tag: int) -> Any: ...


def communicator() -> Communicator | None:
    """Upstream's group of ranks if it has one, else all ranks; None for a single rank or without MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    chosen = getattr(sys.modules.get("tensorrt_llm._utils"), "mpi_comm", None)
    comm: Communicator | None = chosen() if chosen is not None else mpi.COMM_WORLD
    return comm if comm is not None and comm.Get_size() > 1 else None


def rank_and_size() -> tuple[int, int]:
    comm = communicator()
    if comm is not None:
        return comm.Get_rank(), comm.Get_size()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1


def named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class Patience:
    """So many seconds from now, for one message or for all that are awaited.

    Whoever waits looks every few milliseconds. If it could not, because its machine or its container stood still, the
    others may have stood still as well. So the time between two looks counts for a second at most.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._waited_s = 0.0
        self._looked = time.monotonic()

    @property
    def waited_s(self) -> float:
        before, self._looked = self._looked, time.monotonic()
        self._waited_s += min(self._looked - before, STANDSTILL_S_MAX)
        return self._waited_s

    def wait(self, has_come: Callable[[], bool]) -> bool:
        """Return whether it has come before the time is over."""
        begin_s = self.waited_s
        while not has_come():
            now_s = self.waited_s
            if now_s > self.patience_s:
                return False
            time.sleep(min(max((now_s - begin_s) / PAUSES_PER_WAIT, PAUSE_MIN_S), PAUSE_MAX_S))
        return True


class Channel:
    """Messages of one kind. Those of one rank come in the order in which it sent them.

    `duty`: what is said of a rank that stays silent, such as "did not report".
    """

    def __init__(self, comm: Communicator, tag: Tag, duty: str) -> None:
        self._comm = comm
        self._tag = tag
        self._duty = duty

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self._comm.Get_size()) if rank != self._comm.Get_rank()]

    def send(self, rank: int, message: object) -> None:
        self._comm.send(message, dest=rank, tag=self._tag)

    def send_to_others(self, message: object) -> None:
        for rank in self.others:
            self.send(rank, message)

    def begin_to_send(self, rank: int, message: object) -> Sending:
        """`send` may wait for the receiver, if the message is large. This returns at once."""
        return self._comm.isend(message, dest=rank, tag=self._tag)

    def arrived(self, rank: int) -> list[Any]:
        """The messages that are there, without a wait."""
        found = []
        while self._comm.Iprobe(source=rank, tag=self._tag):
            found.append(self._comm.recv(source=rank, tag=self._tag))
        return found

    def wait(self, rank: int, patience: Patience) -> None:
        """Return when a message of this rank is there. Raise RankSilent when the time is over."""
        if not patience.wait(lambda: self._comm.Iprobe(source=rank, tag=self._tag)):
            raise RankSilent(f"rank {rank} {self._duty} within {patience.patience_s:g} s")

    def receive(self, rank: int, patience: Patience) -> Any:
        self.wait(rank, patience)
        return self._comm.recv(source=rank, tag=self._tag)

    def receive_since(self, rank: int, point: tuple[int, ...], patience: Patience) -> tuple[int, ...]:
        """For messages that begin with the point that they are about: an older one came too late for its own."""
        while True:
            message: tuple[int, ...] = self.receive(rank, patience)
            if message[: len(point)] >= point:
                return message


class Ranks(Protocol):
    """Ranks that decide from the same values: each calls `gather` at the same points."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """The value that each rank gave, in the order of ranks."""
        ...


class OneRank:
    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]


class MpiRanks:
    """The ranks of upstream's communicator. Each gives its value to all others, and waits for theirs.

    A rank that has waited in vain meets nobody again: what the others gave late would be taken for the next meeting's.
    """

    def __init__(self, comm: Communicator, patience_s: float) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._channel = Channel(comm, Tag.MEETING, "did not come to a meeting of all")
        self._patience_s = patience_s
        self._silent: list[int] = []
        self._sending: dict[int, Sending] = {}  # kept: MPI reads the value until its receiver has all of it

    def gather(self, value: T) -> list[T]:
        if self._silent:
            raise self._no_answer()
        patience, others = Patience(self._patience_s), self._channel.others
        self._sending = {rank: self._channel.begin_to_send(rank, value) for rank in others}
        given = {self.rank: value}
        for rank in others:
            try:
                given[rank] = self._channel.receive(rank, patience)
            except RankSilent:
                self._silent.append(rank)
        if not self._silent:
            self._silent = [rank for rank in others if not patience.wait(partial(self._has_sent, rank))]
        if self._silent:
            raise self._no_answer()
        return [given[rank] for rank in range(self.size)]

    def _has_sent(self, rank: int) -> bool:
        return self._sending[rank].test()[0]

    def _no_answer(self) -> RankSilent:
        return RankSilent(
            f"{named(self._silent)} of {self.size} did not answer within {self._patience_s:g} s "
            "(kvfix.agreement_timeout_s); usual causes: the process has ended or hangs, which its own log shows, or it "
            "is slower to start than that: then raise the setting"
        )


class PartResult(NamedTuple):
    """The result of one rank's part."""

    value: Any = None
    error: str = ""  # not empty: there is no value


def agreed(ranks: Ranks, part: Callable[[], T]) -> list[T]:
    """Collect what `part` returns on each rank. If it raises on one, this raises on all; the others name that rank."""
    try:
        mine = PartResult(part())
    except Exception as error:
        ranks.gather(PartResult(error=described(error)))
        raise
    results = ranks.gather(mine)
    for rank, one in enumerate(results):
        if one.error:
            raise RankFailed(f"rank {rank} of {ranks.size}: {one.error}")
    return [one.value for one in results]


def together(ranks: Ranks, part: Callable[[], T], undo: Callable[[T], Any] | None = None) -> T:
    """`agreed`, for a result that stays on its rank. `undo` takes it back if another rank failed."""
    mine: list[T] = []
    try:
        agreed(ranks, lambda: mine.append(part()))
    except RankFailed:
        if undo is not None:
            undo(mine[0])
        raise
    return mine[0]


def agreed_seed(ranks: Ranks) -> int:
    """A seed that rank 0 draws for all: for block managers whose hashes and digests must agree."""
    return ranks.gather(secrets.randbits(128) if ranks.rank == 0 else 0)[0]


def ranks_here(patience_s: float) -> Ranks:
    """Upstream's ranks, each of which waits so long for the others whenever they meet."""
    try:
        utils = import_module("tensorrt_llm._utils")
    except ImportError:
        return OneRank()
    size = int(getattr(utils, "mpi_world_size", lambda: 1)())
    if size == 1:
        return OneRank()
    comm = communicator()
    if comm is None or comm.Get_size() != size:
        raise KvfixError(f"{size} ranks, and MPI does not join them: they could not agree on a transfer")
    return MpiRanks(comm, patience_s)
