"""Ranks compare what they run before an engine starts: over messages between ranks, or over files of one host."""

import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixes.ranks import Arrived
from tests.overlay.entries import SEAM, attestation, entry
from trtllm_kvfix import ranks
from trtllm_kvfix.overlay import attest, start_gate
from trtllm_kvfix.ranks import RanksDiffer, Tag
from trtllm_kvfix.runtime_files import process_start

TIMEOUT_S = 30.0
SHORT_S = 0.01


class World:
    """The mailboxes of some ranks, as MPI has them: by receiver, sender and tag."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: dict[tuple[int, int, int], queue.Queue[Any]] = {
            (receiver, sender, tag): queue.Queue()
            for receiver in range(size)
            for sender in range(size)
            for tag in (Tag.ATTESTATION, Tag.VERDICT)
        }


class Rank:
    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank

    def Get_rank(self) -> int:  # noqa: N802  mpi4py's interface
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.world.size

    def Iprobe(self, source: int, tag: int) -> bool:  # noqa: N802
        return not self.world.boxes[self.rank, source, tag].empty()

    def send(self, obj: Any, dest: int, tag: int) -> None:
        self.world.boxes[dest, self.rank, tag].put(obj)

    def isend(self, obj: Any, dest: int, tag: int) -> Any:
        self.send(obj, dest, tag)
        return Arrived()

    def recv(self, *, source: int, tag: int) -> Any:
        return self.world.boxes[self.rank, source, tag].get_nowait()


def compare(entries: dict[int, dict[str, Any]], size: int, timeout_s: float = TIMEOUT_S) -> dict[int, str]:
    """Every rank that has an entry takes part; the answer that each got, "" for agreement."""
    world = World(size)
    told: dict[int, str] = {}

    def take_part(rank: int) -> None:
        try:
            start_gate.agree_by_messages(Rank(world, rank), entries[rank], timeout_s)
        except RanksDiffer as error:
            told[rank] = str(error)
        else:
            told[rank] = ""

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_run_the_same_agree(size: int) -> None:
    assert compare({rank: entry(rank, size) for rank in range(size)}, size) == dict.fromkeys(range(size), "")


def test_every_rank_is_told_which_rank_differs_and_in_what() -> None:
    entries = {rank: entry(rank, 4) for rank in range(4)}
    entries[2]["seams"] = {SEAM: "source:2"}
    message = f"rank 2 differs from rank 0: seam {SEAM} source:1 / source:2"
    assert compare(entries, 4) == dict.fromkeys(range(4), message)


def test_ranks_that_differ_in_the_same_are_named_together() -> None:
    entries = {rank: entry(rank, 4) for rank in range(4)}
    for rank in (1, 3):
        entries[rank]["variant"] = "C"
    assert set(compare(entries, 4).values()) == {"ranks 1, 3 differ from rank 0: variant D / C"}


def test_what_keeps_one_rank_from_starting_is_every_ranks_answer() -> None:
    """A metrics port that is taken on one host must not leave the others waiting in their first collective call."""
    entries = {rank: entry(rank, 4) for rank in range(4)}
    entries[1]["refusal"] = "metrics cannot be served on port 9401"
    assert compare(entries, 4) == dict.fromkeys(range(4), "rank 1: metrics cannot be served on port 9401")


def test_rank_without_the_hook_is_named_and_nobody_hangs() -> None:
    """One rank after the other, so that none is late: what another one sent waits in the mailbox."""
    world = World(3)
    Rank(world, 2).send(entry(2, 3), dest=0, tag=Tag.ATTESTATION)
    for rank in (0, 2):
        with pytest.raises(RanksDiffer, match=r"^rank 1 did not report .* within 0\.01 s; the hook is not active"):
            start_gate.agree_by_messages(Rank(world, rank), entry(rank, 3), SHORT_S)


def test_ranks_do_not_wait_for_ever_for_rank_0() -> None:
    assert compare({1: entry(1, 2)}, 2, SHORT_S)[1].startswith("rank 0 gave no verdict on the fixes within 0.02 s")


def in_another_process(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """An entry that passes for another living process's: that of the first process there is."""
    theirs = entry(1, 2, pid=1, process_start=process_start(1))
    change(theirs)
    attest.write(folder, attestation(0, 2))
    (folder / "1.json").write_text(json.dumps(theirs))


def test_files_of_the_same_job_must_agree(tmp_path: Path) -> None:
    in_another_process(tmp_path, lambda theirs: theirs.update(seams={SEAM: "source:2"}))
    with pytest.raises(RanksDiffer, match=r"rank 0 \(process \d+\) differs from rank 1 \(process 1\) .* source:1 / "):
        start_gate.agree_by_files(tmp_path, entry(0, 2))


def test_what_keeps_another_rank_of_this_host_from_starting_stops_this_one(tmp_path: Path) -> None:
    in_another_process(tmp_path, lambda theirs: theirs.update(refusal="its port is taken"))
    with pytest.raises(RanksDiffer, match=r"rank 1 \(process 1\): its port is taken"):
        start_gate.agree_by_files(tmp_path, entry(0, 2))


@pytest.mark.parametrize(
    "harmless",
    [{"seams": {SEAM: "source:1"}}, {"job": "other"}, {"started": False}, {"world_size": 4}, {"rank": 0}],
)
def test_other_engines_and_processes_without_one_are_not_compared(tmp_path: Path, harmless: dict[str, Any]) -> None:
    in_another_process(tmp_path, lambda theirs: theirs.update({"seams": {SEAM: "source:2"}} | harmless))
    start_gate.agree_by_files(tmp_path, entry(0, 2))


def test_without_mpi_there_is_one_rank() -> None:
    assert ranks.communicator() is None
    assert ranks.rank_and_size() == (0, 1)
