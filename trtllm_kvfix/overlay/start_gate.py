"""No engine starts before its ranks have compared which fixes they run: `PyExecutor.start_worker` waits for that.

Every rank calls it once the managers are built and the model is warm, when everything that fixes replace is imported.
Ranks that run different fixes must not form an engine. They compare by MPI where there is more than one rank, else by
the files of the same job on this host. Over MPI, a rank without the hook is named after a while.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_kvfix import ranks, runtime_files
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.overlay import attest
from trtllm_kvfix.overlay.attest import differences, live
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, STARTS, Upstream
from trtllm_kvfix.ranks import Channel, Communicator, Patience, RanksDiffer, RankSilent, Tag, named
from trtllm_kvfix.runtime_files import folder_of

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


TRIGGER = PY_EXECUTOR
FLIGHT_RECORDS_MAX = 16  # of processes that have been killed


def replacements(active: "Activation") -> list[Replacement]:
    method = next((each for each in STARTS if Upstream().has(TRIGGER, each)), None)
    if method is None:
        log.warning("%s has no PyExecutor: ranks cannot be compared before they start", TRIGGER)
        return []
    return [Replacement(Seam(TRIGGER, method), partial(gated, active))]


def gated(active: "Activation", start: Callable[..., Any]) -> Callable[..., Any]:
    is_constructor = start.__name__ == "__init__"  # what it will have cannot be looked at yet

    def start_when_agreed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            pass_gate(active, None if is_constructor else self)
        return start(self, *args, **kwargs)

    return start_when_agreed


def pass_gate(active: "Activation", executor: Any = None) -> None:
    """Attest, compare, serve metrics and log which fixes are on. Raises if this rank must not start."""
    active.registry.apply(active.settings, at_last=True)  # again, should an import have swallowed a failure
    active.engine_starts(executor)
    _keep_flight_record(active)
    objection = "" if executor is None else active.objection(active.settings, executor)
    mine = active.attestation(refusal=objection or _served_metrics(active))
    if mine.aliases:
        log.warning(
            "still the originals, because they were imported before the fixes were applied: %s", ", ".join(mine.aliases)
        )
    active.tell_displaced(mine.displaced)
    _compare(active, mine)
    if mine.refusal:
        raise SettingsError(mine.refusal)
    active.say(f"rank {mine.rank} of {mine.world_size}, variant {mine.variant}; {active.registry.report().line()}")


def _keep_flight_record(active: "Activation") -> None:
    """Keep it in a file that `status --dump` finds even if this process is killed."""
    try:
        folder = folder_of(active.settings)
        with runtime_files.new_file(folder, flight.SUFFIX) as descriptor:
            memory = flight.recorder().mapped(descriptor)
        flight.recorder().move_to(memory)
        runtime_files.keep_newest_of_ended(folder, flight.SUFFIX, FLIGHT_RECORDS_MAX)
        runtime_files.forget_at_exit(runtime_files.Owner.ours().file(folder, flight.SUFFIX))
    except (OSError, KvfixError) as error:
        log.warning("no flight record is kept: %s", error)
    flight.note(flight.STARTED, *ranks.rank_and_size())


def _compare(active: "Activation", mine: attest.Attestation) -> None:
    """Compare with the other ranks. Over MPI, a file that cannot be written matters to `status` alone."""
    comm = ranks.communicator()
    try:
        active.publish(mine)
    except KvfixError as error:
        if comm is None and mine.world_size > 1:
            raise
        active.complain(error)
    if comm is not None:
        agree_by_messages(comm, mine.as_dict(), active.settings.agreement_timeout_s)
    elif mine.world_size > 1:
        agree_by_files(folder_of(active.settings), mine.as_dict())


def _served_metrics(active: "Activation") -> str:
    """Serve metrics, or return why they cannot be served. All ranks learn of it before any of them starts."""
    if active.settings.metrics_port is None:
        return ""
    try:
        _serve_metrics(active, active.settings.metrics_port, ranks.rank_and_size()[0])
    except SettingsError as error:
        return str(error)
    return ""


@functools.cache
def _serve_metrics(active: "Activation", port_first: int, rank: int) -> None:
    """Once for each process, whatever number of engines it starts."""
    from trtllm_kvfix.metrics.exporter import serve  # noqa: PLC0415  asyncio and Prometheus's client, for this alone

    serve(port_first, rank, lambda: {status.id: status.word for status in active.registry.report().fixes})


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
