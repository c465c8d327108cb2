"""Messages between ranks. All ranks decide from the same values, so each calls `gather` at the same points.

Work of one rank that may fail lies inside `agreed` or `together`: a rank that raised between two meetings would leave
the others waiting in the next one until the engine is killed.
"""

import secrets
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import described

T = TypeVar("T")


class Ranks(Protocol):
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


class Told(NamedTuple):
    """The result of one rank's part."""

    value: Any = None
    error: str = ""  # not empty: there is no value


class RankFailed(KvfixError):
    """Another rank could not do its part."""


class MpiRanks:
    """Through upstream's own communicator, as its connector manager does right after."""

    def __init__(self, rank: int, size: int, allgather: Callable[[Any], list[Any]]) -> None:
        self.rank, self.size, self._allgather = rank, size, allgather

    def gather(self, value: T) -> list[T]:
        return self._allgather(value)


def agreed(ranks: Ranks, part: Callable[[], T]) -> list[T]:
    """Collect what `part` returns on each rank. If it raises on one, this raises on all; the others name that rank."""
    try:
        mine = Told(part())
    except Exception as error:
        ranks.gather(Told(error=described(error)))
        raise
    told = ranks.gather(mine)
    for rank, one in enumerate(told):
        if one.error:
            raise RankFailed(f"rank {rank} of {ranks.size}: {one.error}")
    return [one.value for one in told]


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


def ranks_here() -> Ranks:
    try:
        utils = import_module("tensorrt_llm._utils")
    except ImportError:
        return OneRank()
    size = int(getattr(utils, "mpi_world_size", lambda: 1)())
    if size == 1:
        return OneRank()
    allgather = getattr(utils, "mpi_allgather", None)
    if allgather is None:
        raise KvfixError(
            f"{size} ranks, and this TensorRT-LLM has no mpi_allgather: they could not agree on a transfer"
        )
    return MpiRanks(int(utils.mpi_rank()), size, allgather)
