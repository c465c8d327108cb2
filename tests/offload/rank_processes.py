"""Ranks that are processes and meet through pipes, where there is no MPI."""

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from unittest import mock

from trtllm_kvfix.native import Device, open_device

from .executor import BLOCK_WORDS
from .rank_scenarios import Here

T = TypeVar("T")
RANK_S_MAX = 240.0
Part = Callable[[Here], Any]


class PipeRanks:
    """Rank 0 collects what each says and sends it to all. A rank that is gone ends the others with EOFError."""

    def __init__(self, rank: int, size: int, pipes: Sequence[Connection]) -> None:
        self.rank, self.size, self._pipes = rank, size, pipes  # rank 0: one to each other rank; elsewhere: to rank 0

    def gather(self, value: T) -> list[T]:
        if self.rank:
            self._pipes[0].send(value)
            told: list[T] = self._pipes[0].recv()
            return told
        told = [value, *(pipe.recv() for pipe in self._pipes)]
        for pipe in self._pipes:
            pipe.send(told)
        return told


def torch_pool(device: Device, blocks: int) -> Any:
    """Makes the tensor as upstream does: torch's, on the device that is torch's current one."""
    import torch  # noqa: PLC0415  only where a GPU is

    assert device.name.startswith(f"cuda:{torch.cuda.current_device()} "), device.name
    return torch.empty((blocks, BLOCK_WORDS), dtype=torch.int32, device="cuda")


def here_on(kind: str, ranks: PipeRanks) -> Here:
    if kind == "cpu":
        return Here(ranks, open_device("cpu", ranks.rank))
    import torch  # noqa: PLC0415  only where a GPU is

    torch.cuda.set_device(ranks.rank)
    return Here(ranks, open_device(f"cuda:{ranks.rank}"), torch_pool)


def rank_main(kind: str, ranks: PipeRanks, results: Connection, parts: Sequence[Part]) -> None:
    try:
        with mock.patch("trtllm_kvfix.offload.connector.ranks_here", return_value=ranks):
            here = here_on(kind, ranks)
            results.send([part(here) for part in parts])
    except BaseException:
        results.send(traceback.format_exc())
        raise


def run_ranks(kind: str, size: int, parts: Sequence[Part]) -> list[list[Any]]:
    """The results of each part on each rank. `kind`: 'cpu' for a simulated device each, 'cuda' for a GPU each."""
    context = multiprocessing.get_context("spawn")
    links = [context.Pipe() for _ in range(size - 1)]
    results = [context.Pipe(duplex=False) for _ in range(size)]
    pipes = [[ours for ours, _ in links], *([theirs] for _, theirs in links)]
    processes = [
        context.Process(
            target=rank_main, args=(kind, PipeRanks(rank, size, pipes[rank]), results[rank][1], parts), daemon=True
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for end in [*(end for link in links for end in link), *(write for _, write in results)]:
        end.close()  # so that the end of a process is the end of its pipes
    try:
        found = [received(rank, read) for rank, (read, _) in enumerate(results)]
        broken = [reports for reports in found if isinstance(reports, str)]
        assert not broken, "\n".join(broken)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return [list(reports) for reports in zip(*found, strict=True)]


def received(rank: int, results: Connection) -> list[Any] | str:
    assert results.poll(RANK_S_MAX), f"rank {rank} says nothing for {RANK_S_MAX:g} s"
    found: list[Any] | str = results.recv()
    return found
