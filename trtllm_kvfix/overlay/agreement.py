"""Ranks that run different fixes must not form an engine: they compare attestations before it starts.

They use MPI where there is more than one rank, else the files of the same job on this host. Over MPI a rank without the
hook is named after a while.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_kvfix.overlay.attest import differences, live
from trtllm_kvfix.ranks import Channel, Communicator, Patience, RanksDiffer, RankSilent, Tag, named


def agree_by_messages(comm: Communicator, ours: Mapping[str, Any], timeout_s: float) -> None:
    """Rank 0 collects, compares and answers every rank that has reported; each raises RanksDiffer or none does."""
    attestations = Channel(comm, Tag.ATTESTATION, "did not report")
    verdicts = Channel(comm, Tag.VERDICT, "gave no verdict on the fixes")
    if comm.Get_rank() != 0:
        attestations.send(0, dict(ours))
        try:
            # Rank 0 may wait the whole of its time for a third rank before it answers.
            verdict = verdicts.receive(0, Patience(2 * timeout_s))
        except RankSilent as error:
            raise RanksDiffer(f"{error}; is the hook active there?") from None
    else:
        collected, patience = {0: ours}, Patience(timeout_s)
        for rank in attestations.others:
            with suppress(RankSilent):
                collected[rank] = attestations.receive(rank, patience)
        verdict = complaint(collected, comm.Get_size(), timeout_s)
        for rank in collected:
            if rank != 0:
                verdicts.send(rank, verdict)
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
            f"{named(missing)} did not report which fixes run there within {timeout_s:g} s; the hook is not active "
            "there, or the engine never came to its start"
        )
    parts += [f"rank {rank}: {theirs['refusal']}" for rank, theirs in sorted(collected.items()) if theirs["refusal"]]
    by_difference: dict[tuple[str, ...], list[int]] = {}
    for rank, theirs in sorted(collected.items()):
        found = tuple(differences(collected[0], theirs))
        if found:
            by_difference.setdefault(found, []).append(rank)
    parts += [
        f"{named(ranks)} {'differ' if len(ranks) > 1 else 'differs'} from rank 0: {_some(found)}"
        for found, ranks in by_difference.items()
    ]
    return "; ".join(parts) or None


def _some(found: Sequence[str], shown_max: int = 4) -> str:
    more = f" and {len(found) - shown_max} more" if len(found) > shown_max else ""
    return "; ".join(found[:shown_max]) + more
