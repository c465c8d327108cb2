"""No engine starts before its ranks have compared which fixes they run: `PyExecutor.start_worker` waits for that.

Every rank calls it once the managers are built and the model is warm, when everything that fixes replace is imported.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix import ranks, runtime_files
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.metrics.exporter import serve
from trtllm_kvfix.overlay import agreement, attest
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream
from trtllm_kvfix.runtime_files import folder_of

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


TRIGGER = PY_EXECUTOR
FLIGHT_RECORDS_MAX = 16  # of processes that have been killed
METHODS = ("PyExecutor.start_worker", "PyExecutor.__init__")  # the second where the first is not there


def replacements(active: "Activation") -> list[Replacement]:
    method = next((each for each in METHODS if Upstream().has(TRIGGER, each)), None)
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
    folder = folder_of(active.settings)
    try:
        active.publish(mine)
    except KvfixError as error:
        if comm is None and mine.world_size > 1:
            raise
        log.warning("%s", error)
    if comm is not None:
        agreement.agree_by_messages(comm, mine.as_dict(), active.settings.agreement_timeout_s)
    elif mine.world_size > 1:
        agreement.agree_by_files(folder, mine.as_dict())


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
    serve(port_first, rank, lambda: {status.id: status.word for status in active.registry.report().fixes})
