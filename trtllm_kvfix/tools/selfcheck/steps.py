"""The steps of a self-check, each of which says what it saw in plain values.

A step has a name such as "offsets-v1:only". In the arm `off` upstream runs alone, in `only` with the one fix that the
scenario is about, in `all` with every fix that is needed, as a server has them.

Child processes take the steps, and report the outcome of each in turn. One that dies or hangs costs the step it was in,
the first without an outcome; another child goes on after it.

python -m trtllm_kvfix.tools.selfcheck.steps DESCRIPTOR STEP...
"""

import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.hazards import build, table
from trtllm_kvfix.hazards.ground import Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay import import_hook
from trtllm_kvfix.overlay.fix import Fix, State
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.releases import distribution_version
from trtllm_kvfix.overlay.upstream import PACKAGE, Upstream
from trtllm_kvfix.settings import FixChoices, Settings
from trtllm_kvfix.tools.interrupts import deaf_to_interrupts

# "skipped": there is nothing to look at in this build. "unavailable": it could not be looked at.
Result = Literal["right", "wrong", "skipped", "unavailable", "died"]
IMPORT = "import"
ARMS = ("off", "only", "all")
SCENARIOS = table.scenarios()


class StepOutcome(NamedTuple):
    result: Result
    said: str = ""
    seen: dict[str, Any] | None = None


def names() -> list[str]:
    """In the order in which they are taken."""
    return [
        IMPORT,
        *(f"self-test:{fix.id}" for fix in ALL),
        *(f"replace:{fix.id}" for fix in ALL),
        "replace:all",
        *(f"{scenario.name}:{arm}" for scenario in SCENARIOS for arm in ARMS),
    ]


def take(name: str, ground: Callable[[], Ground]) -> StepOutcome:
    """Take a step. Whatever it raises is its outcome."""
    kind, _, which = name.partition(":")
    try:
        if kind == IMPORT:
            return _import()
        if kind == "self-test":
            _fix(which).self_test()
            return StepOutcome("right")
        if kind == "replace":
            return _replace(which)
        return _play(next(each for each in SCENARIOS if each.name == kind), which, ground)
    except (NothingToShow, Unavailable) as error:
        return StepOutcome("skipped" if isinstance(error, NothingToShow) else "unavailable", str(error))
    except Exception as error:
        return StepOutcome("wrong", f"{type(error).__name__}: {error}")


def _import() -> StepOutcome:
    up = build.imported()
    answers = {status.id: status.answer for status in Registry(ALL).probe(Settings(), up).fixes}
    seen = {
        "version": distribution_version(PACKAGE),
        "variant": up.variant(),
        "torch": distribution_version("torch"),
        "python": platform.python_version(),
        "probes": {
            fix_id: {"state": answer.state.value, "reason": answer.reason}
            for fix_id, answer in answers.items()
            if answer is not None
        },
    }
    unknown = [fix_id for fix_id, answer in answers.items() if answer is None or answer.state is State.UNKNOWN]
    return StepOutcome("wrong" if unknown else "right", f"unknown: {', '.join(unknown)}" if unknown else "", seen)


def _replace(which: str) -> StepOutcome:
    """Put on, looked at and taken off: everything is as it was."""
    up = build.imported()
    settings = Settings() if which == "all" else _only(which)
    if which != "all" and state_of(which, up) is not State.NEEDED:
        return StepOutcome("skipped", state_of(which, up).value)
    with _applied(settings, up) as registry:
        report = registry.report()
        seams = sorted({seam for status in report.fixes for seam in status.seams})
        before_revert = [_held(up, seam) for seam in seams]
        seen = {"applied": list(report.applied), "seams": seams, "aliases": registry.aliases()}
        lost = list(report.displaced)
    if lost:
        return StepOutcome("wrong", f"not ours although they were replaced: {', '.join(lost)}", seen)
    kept = [seam for seam, held in zip(seams, before_revert, strict=True) if _held(up, seam) is held]
    if kept:
        return StepOutcome("wrong", f"not given back: {', '.join(kept)}", seen)
    return StepOutcome("right", "", seen)


def _play(scenario: Scenario, arm: str, ground: Callable[[], Ground]) -> StepOutcome:
    up = build.imported()
    state = state_of(scenario.fix_id, up)
    if arm == "only" and state is not State.NEEDED:
        return StepOutcome("skipped", state.value)
    if arm == "off":
        return _said(scenario.run(ground(), up))
    with _applied(Settings() if arm == "all" else _only(scenario.fix_id, *scenario.beside), up) as registry:
        wrong = scenario.run(ground(), up)
        faults = [f"{each.id}: {each.first_error}" for each in registry.report().fixes if each.faults]
    return _said(wrong or (f"faults of fixes: {'; '.join(faults)}" if faults else None))


def _said(wrong: str | None) -> StepOutcome:
    return StepOutcome("right") if wrong is None else StepOutcome("wrong", wrong)


@contextmanager
def _applied(settings: Settings, up: Upstream) -> Iterator[Registry]:
    registry = Registry(ALL)
    registry.apply(settings, up, at_last=True)
    try:
        yield registry
    finally:
        registry.revert()


def _only(*fix_ids: str) -> Settings:
    chosen = {fix.id: "auto" if fix.id in fix_ids else "off" for fix in ALL}
    return Settings(fixes=FixChoices.model_validate(chosen))


def _fix(fix_id: str) -> Fix:
    return next(fix for fix in ALL if fix.id == fix_id)


def state_of(fix_id: str, up: Upstream) -> State:
    return _fix(fix_id).probe(up).state


def _held(up: Upstream, seam: str) -> Any:
    module, _, path = seam.partition(":")
    return up.attribute(module, path)


# ---- the children that take them ----

CHILD = (sys.executable, "-m", "trtllm_kvfix.tools.selfcheck.steps")


def run(
    names: Sequence[str],
    *,
    limit_s: float,
    child: Sequence[str] = CHILD,
    ended: Callable[[int], object] = lambda _: None,
) -> dict[str, StepOutcome]:
    """limit_s: how long a step may take. `ended` gets how many have ended."""
    outcomes: dict[str, StepOutcome] = {}
    while left := names[len(outcomes) :]:
        with _started(child, left) as (process, reports):
            for name, outcome in zip(left, _arriving(reports, limit_s), strict=False):
                outcomes[name] = outcome
                ended(len(outcomes))
            for name in names[len(outcomes) : len(outcomes) + 1]:
                outcomes[name] = StepOutcome("died", _how(process, limit_s))
    return outcomes


@contextmanager
def _started(command: Sequence[str], names: Sequence[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Connection]]:
    """Start the child with upstream's output on stderr, so that the report has stdout to itself."""
    reading, writing = Pipe(duplex=False)
    with reading:
        with writing:
            descriptor = writing.fileno()
            arguments = [*command, str(descriptor), *names]
            with deaf_to_interrupts():
                process = subprocess.Popen(arguments, stdout=sys.stderr.fileno(), pass_fds=[descriptor])
        try:
            yield process, reading
        finally:
            process.kill()
            process.wait()


def _arriving(reports: Connection, limit_s: float) -> Iterator[StepOutcome]:
    """Until the other end is closed, or nothing comes for too long."""
    with suppress(EOFError, OSError):  # the second where a child ends in the middle of an outcome
        while reports.poll(limit_s):
            yield StepOutcome(*reports.recv())


def _how(process: "subprocess.Popen[bytes]", limit_s: float) -> str:
    """Says how a child that has stopped writing ended."""
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:g} s"
    return f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process exited with {code}"


def main(arguments: Sequence[str], ground: Callable[[], Ground] = Ground) -> None:
    import_hook.remove()  # the fixes of this process would be in the arms that are to be without
    descriptor, *names = arguments
    with Connection(int(descriptor), readable=False) as report:
        for name in names:
            report.send(tuple(take(name, ground)))  # a class of __main__ is unknown elsewhere


if __name__ == "__main__":
    main(sys.argv[1:])
