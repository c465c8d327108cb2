"""Ranks of one model as threads of a test: a device, a pool and a worker side each."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.threads import run_together
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import HostPool, open_device
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings

T = TypeVar("T")
WORDS = 64
RANKS = 2


class ThreadRanks:
    """Ranks that are threads of one test; gather is a meeting of all."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=120)
        self._given: list[Any] = [None] * size

    def rank(self, rank: int) -> Any:
        def gather(value: T) -> list[T]:
            self._given[rank] = value
            self._barrier.wait()
            given = list(self._given)
            self._barrier.wait()
            return given

        return SimpleNamespace(rank=rank, size=len(self._given), gather=gather)


class Rank:
    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self.ranks = ranks.rank(rank)
        self.device = open_device("cpu", rank)
        self.stream = self.device.create_stream()
        self.pool = self.device.empty((8, WORDS), "uint32")
        self.link = Link()
        self.worker = OffloadWorker(OffloadSettings(), self.link, self.ranks, self.make_pool)

    def make_pool(self, device: Any, block_bytes: int, ranks: Any) -> HostPool:
        slots = 16 - ranks.rank  # the second has room for one block less
        return HostPool(device, host_bytes=slots * block_bytes, block_bytes=block_bytes)


def on_all(ranks: Sequence[Rank], call: Callable[[Rank], T]) -> list[T]:
    """The results of all ranks' threads; raises the first error of any."""
    found: list[Any] = [None] * len(ranks)

    def run(number: int) -> None:
        found[number] = call(ranks[number])

    run_together(*(partial(run, number) for number in range(len(ranks))))
    return found


def errors_of_all(ranks: Sequence[Rank], call: Callable[[Rank], Any]) -> list[str]:
    """Each rank's thread ends with an error; a rank that waits for others would meet nobody, and time out."""

    def error_of(rank: Rank) -> str:
        with pytest.raises(KvfixError) as raised:
            call(rank)
        return f"{type(raised.value).__name__}: {raised.value}"

    return on_all(ranks, error_of)


def started() -> list[Rank]:
    meeting = ThreadRanks(RANKS)
    made = [Rank(meeting, rank) for rank in range(RANKS)]
    on_all(made, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    return made
