"""What ranks tell each other. Every rank calls `gather` at the same points, since what they decide from is the same."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TypeVar

from trtllm_kvfix.errors import KvfixError

T = TypeVar("T")


class Ranks(Protocol):
    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """What each rank gave, in the order of ranks."""
        ...


class OneRank:
    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]


class MpiRanks:
    """Through upstream's own communicator, as its connector manager does right after."""

    def __init__(self, rank: int, size: int, allgather: Callable[[Any], list[Any]]) -> None:
        self.rank, self.size, self._allgather = rank, size, allgather

    def gather(self, value: T) -> list[T]:
        return self._allgather(value)


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
