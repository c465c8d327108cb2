"""Ranks that run different fixes must not form an engine: they compare attestations before it starts.

They use MPI where there is more than one rank, else the files of the same job on this host. Over MPI they send messages
between two ranks with a tag of our own. A collective call would not do: a rank without the hook would join it with one
of upstream's collectives, or never. As it is, such a rank is named after a while.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay.attest import differences, live

TAG_ATTESTATION = 27510
TAG_VERDICT = 27511
POLL_S = 0.002


class RanksDiffer(KvfixError):
    """The ranks of one engine do not run the same fixes over the same upstream."""


class Communicator(Protocol):
    """The part of mpi4py's communicator that we use."""

    def Get_rank(self) -> int: ...  # noqa: N802
    def Get_size(self) -> int: ...  # noqa: N802
    def Iprobe(self, source: int, tag: int) -> bool: ...  # noqa: N802
    def send(self, obj: Any, dest: int, tag: int) -> None: ...
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


def agree_by_messages(comm: Communicator, ours: Mapping[str, Any], timeout_s: float) -> None:
    """Rank 0 collects, compares and answers every rank that has reported; each raises RanksDiffer or none does."""
    deadline = time.monotonic() + timeout_s
    if comm.Get_rank() != 0:
        comm.send(dict(ours), dest=0, tag=TAG_ATTESTATION)
        # Rank 0 may wait the whole of its time for a third rank before it answers.
        if not arrives(comm, 0, TAG_VERDICT, deadline + timeout_s):
            raise RanksDiffer(
                f"rank 0 gave no verdict on the fixes within {2 * timeout_s:g} s; is the hook active there?"
            )
        verdict = comm.recv(source=0, tag=TAG_VERDICT)
    else:
        collected = {0: ours}
        for rank in range(1, comm.Get_size()):
            if arrives(comm, rank, TAG_ATTESTATION, deadline):
                collected[rank] = comm.recv(source=rank, tag=TAG_ATTESTATION)
        verdict = complaint(collected, comm.Get_size(), timeout_s)
        for rank in collected:
            if rank != 0:
                comm.send(verdict, dest=rank, tag=TAG_VERDICT)
    if verdict is not None:
        raise RanksDiffer(verdict)


def agree_by_files(folder: Path, ours: Mapping[str, Any]) -> None:
    """Compare with the files of other ranks: of any two ranks on this host, the later one finds the earlier one's file.

    One start may make several engines, whose settings may differ. Where another process of it has our own rank, the
    others look alike, and nobody is refused.
    """
    others = [
        entry
        for entry in live(folder)
        if entry["started"]
        and entry["pid"] != ours["pid"]
        and all(entry[key] == ours[key] for key in ("job", "world_size"))
    ]
    if any(entry["rank"] == ours["rank"] for entry in others):
        return
    for other in others:
        if other["refusal"]:
            raise RanksDiffer(f"rank {other['rank']} (process {other['pid']}): {other['refusal']}")
        found = differences(ours, other)
        if found:
            raise RanksDiffer(
                f"rank {ours['rank']} (process {ours['pid']}) differs from rank {other['rank']} (process "
                f"{other['pid']}) of the same start: {_some(found)}"
            )


def complaint(collected: Mapping[int, Mapping[str, Any]], size: int, timeout_s: float) -> str | None:
    """A message that names the ranks that are missing or differ; None when all are there and alike."""
    parts = []
    missing = [rank for rank in range(size) if rank not in collected]
    if missing:
        parts.append(
            f"{_ranks(missing)} did not report which fixes run there within {timeout_s:g} s; the hook is not active "
            "there, or the engine never came to its start"
        )
    parts += [f"rank {rank}: {theirs['refusal']}" for rank, theirs in sorted(collected.items()) if theirs["refusal"]]
    by_difference: dict[tuple[str, ...], list[int]] = {}
    for rank, theirs in sorted(collected.items()):
        found = tuple(differences(collected[0], theirs))
        if found:
            by_difference.setdefault(found, []).append(rank)
    parts += [
        f"{_ranks(ranks)} {'differ' if len(ranks) > 1 else 'differs'} from rank 0: {_some(found)}"
        for found, ranks in by_difference.items()
    ]
    return "; ".join(parts) or None


def arrives(comm: Communicator, source: int, tag: int, deadline: float, poll_s: float = POLL_S) -> bool:
    """Wait for a message. False: none has come by the deadline."""
    while not comm.Iprobe(source=source, tag=tag):
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _some(found: Sequence[str], shown_max: int = 4) -> str:
    more = f" and {len(found) - shown_max} more" if len(found) > shown_max else ""
    return "; ".join(found[:shown_max]) + more
