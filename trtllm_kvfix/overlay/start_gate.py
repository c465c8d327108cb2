"""No engine starts before its ranks have said what they run and agree: `PyExecutor.start_worker` waits for that.

Every rank calls it once the managers are built and the model is warm, when everything that fixes replace is imported.
"""

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import agreement, attest
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream
from trtllm_kvfix.settings import runtime_dir

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Active

log = logging.getLogger("trtllm_kvfix")

TRIGGER = PY_EXECUTOR
METHODS = ("PyExecutor.start_worker", "PyExecutor.__init__")  # the second where the first is not there


def replacements() -> list[Replacement]:
    method = next((each for each in METHODS if Upstream().has(TRIGGER, each)), None)
    if method is None:
        log.warning("%s has no PyExecutor: ranks cannot be compared before they start", TRIGGER)
        return []
    return [Replacement(Seam(TRIGGER, method), gated)]


def gated(start: Callable[..., Any]) -> Callable[..., Any]:
    def start_when_agreed(self: Any, *args: Any, **kwargs: Any) -> Any:
        pass_gate()
        return start(self, *args, **kwargs)

    return start_when_agreed


def pass_gate() -> None:
    """Attest, compare, serve metrics, say what is on. Raises where this rank must not start."""
    from trtllm_kvfix.overlay import activation  # noqa: PLC0415  it imports this module

    active = activation.current()
    if active is None:
        return
    report = active.registry.apply(active.settings, at_last=True)  # again, should an import have swallowed a failure
    active.started = True
    mine = described(active)
    if mine.aliases:
        log.warning("still the originals, because they were taken before the fixes came: %s", ", ".join(mine.aliases))
    for name in active.registry.lost():
        log.warning("%s was replaced by somebody else after us", name)
    _compare(active, mine)
    if active.settings.metrics_port is not None:
        _serve_metrics(active.settings.metrics_port, mine.rank)
    line = f"rank {mine.rank} of {mine.world_size}, variant {mine.variant}; {report.line()}"
    if line != active.said:  # upstream starts an engine twice, the first time to see what memory it takes
        active.said = line
        log.info("%s", line)


def described(active: "Active") -> attest.Attestation:
    """What this process runs."""
    rank, world_size = agreement.rank_and_size()
    return attest.Attestation.of(
        active.registry.report(),
        variant=Upstream().variant(),
        job=active.job,
        rank=rank,
        world_size=world_size,
        started=active.started,
        aliases=active.registry.aliases() if active.started else [],  # it looks at all of upstream
    )


def _compare(active: "Active", mine: attest.Attestation) -> None:
    """Over MPI a file that cannot be written is only missed by `status`."""
    comm = agreement.communicator()
    folder = runtime_dir(active.settings)
    try:
        attest.write(folder, mine)
    except KvfixError as error:
        if comm is None and mine.world_size > 1:
            raise
        log.warning("%s", error)
    if comm is not None:
        agreement.agree_by_messages(comm, mine.as_dict(), active.settings.agreement_timeout_s)
    elif mine.world_size > 1:
        agreement.agree_by_files(folder, mine.as_dict())


@functools.cache
def _serve_metrics(port_first: int, rank: int) -> None:
    """Once for each process, whatever number of engines it starts."""
    from trtllm_kvfix.metrics.exporter import serve  # noqa: PLC0415  off by default
    from trtllm_kvfix.overlay import activation  # noqa: PLC0415

    def words() -> dict[str, str]:
        report = activation.report()
        return {status.id: status.word for status in report.fixes} if report is not None else {}

    serve(port_first, rank, words)
