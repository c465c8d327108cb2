"""Ranks of one batch as threads, and a communicator between them that needs no MPI."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.threads import run_together

Box = queue.SimpleQueue[Any]


class Between:
    """Messages between two ranks keep their order, tag by tag, and are there at once."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sent = 0
        self._lock = threading.Lock()
        self._boxes: dict[tuple[int, int, int], Box] = defaultdict(queue.SimpleQueue)

    def box(self, source: int, dest: int, tag: int) -> Box:
        with self._lock:
            return self._boxes[source, dest, tag]

    def of(self, rank: int) -> "RankComm":
        return RankComm(self, rank)


class Arrived:
    """What has been sent is in its box."""

    def test(self) -> tuple[bool, None]:
        return True, None


class RankComm:
    def __init__(self, between: Between, rank: int) -> None:
        self._between, self._rank = between, rank

    def Get_rank(self) -> int:  # noqa: N802  MPI's
        return self._rank

    def Get_size(self) -> int:  # noqa: N802  MPI's
        return self._between.ranks

    def Iprobe(self, source: int, tag: int) -> bool:  # noqa: N802  MPI's
        return not self._between.box(source, self._rank, tag).empty()

    def send(self, obj: Any, dest: int, tag: int) -> None:
        self._between.sent += 1
        self._between.box(self._rank, dest, tag).put(obj)

    def isend(self, obj: Any, dest: int, tag: int) -> Any:
        self.send(obj, dest, tag)
        return Arrived()

    def recv(self, *, source: int, tag: int) -> Any:
        return self._between.box(source, self._rank, tag).get(timeout=30)


def on_ranks(between: Between, work: Callable[[int, RankComm], Any]) -> list[Any]:
    """The results of all ranks' threads."""
    answers: dict[int, Any] = {}

    def run(rank: int) -> None:
        answers[rank] = work(rank, between.of(rank))

    run_together(*[lambda rank=rank: run(rank) for rank in range(between.ranks)])
    return [answers[rank] for rank in range(between.ranks)]
