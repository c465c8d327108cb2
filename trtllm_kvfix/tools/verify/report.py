"""What a run of `verify` found: the models that `--json` prints, a table, and plain words.

Nothing is counted here.
"""

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from pydantic import BaseModel, ConfigDict, computed_field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_kvfix.hazards.case import ControlKind
from trtllm_kvfix.plurals import number_of


class Verdict(str, Enum):
    PROVEN = "proven"  # the control corrupts, the fix does not
    VACUOUS = "vacuous"  # the control stayed clean, so a clean fix says nothing
    FIX_FAILED = "fix failed"
    NOT_HELD = "not held"  # the work under test was over when its source was overwritten


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceInfo(_Found):
    name: str
    simulated: bool
    has_kernels: bool
    has_batched_copy: bool
    passed_over: str | None  # the GPU that `auto` found and could not use


class Timeline(_Found):
    """One iteration, in microseconds since its gate was closed, by the clock of the host."""

    iteration: int  # from 1
    call_us: float
    returned_us: float
    disturb_us: float
    disturbed_us: float
    opened_us: float  # the work was seen pending for the last time, and the gate is opened
    held_done_us: float  # with two streams, the work behind the gate was seen done, so what waits for it may begin
    done_us: float  # everything was seen done: the device itself was done a little earlier


class Example(_Found):
    """The first wrong word of an iteration that was corrupt."""

    iteration: int
    index: list[int]
    expected: int
    found: int
    words_wrong: int
    words: int


class LaneOutcome(_Found):
    name: str
    work: str
    early: bool


class ArmOutcome(_Found):
    how: str
    meanwhile: str
    effect: str
    iterations: int
    corrupt: int
    pending: int  # iterations in which the work under test was seen pending before the gate was opened
    call_us_median: float
    lanes: list[LaneOutcome]
    timeline: Timeline
    example: Example | None


class CaseOutcome(_Found):
    case: str
    variant: str
    hazard: str
    title: str
    call: str
    control_kind: ControlKind
    control: ArmOutcome
    fixed: ArmOutcome
    half: ArmOutcome | None

    @property
    def arms(self) -> list[ArmOutcome]:
        return [arm for arm in (self.control, self.fixed, self.half) if arm is not None]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        if self.fixed.corrupt:
            return Verdict.FIX_FAILED
        if any(arm.pending < arm.iterations for arm in self.arms):
            return Verdict.NOT_HELD
        # The gate decides the order, not luck: a control that escapes once is not the hazard that it claims to be.
        return Verdict.VACUOUS if self.control.corrupt < self.control.iterations else Verdict.PROVEN


class Report(_Found):
    """`verify --json`."""

    version: str
    device: DeviceInfo
    iterations: int
    seed: int
    cases: list[CaseOutcome]
    cases_planned: int  # Ctrl-C leaves fewer, each of which ran to its end

    @computed_field  # type: ignore[prop-decorator]
    @property
    def partial(self) -> bool:
        return len(self.cases) < self.cases_planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def proven(self) -> bool:
        return not self.partial and all(case.verdict is Verdict.PROVEN for case in self.cases)


STYLES = {
    Verdict.PROVEN: "green",
    Verdict.VACUOUS: "bold yellow",
    Verdict.FIX_FAILED: "bold red",
    Verdict.NOT_HELD: "bold yellow",
}


def print_report(console: Console, report: Report) -> None:
    console.print(
        ", ".join(facts(report)),
        style="bold",
        markup=False,
        highlight=False,
    )
    print_table(console, report)
    for line in (*notes(report), *complaints(report), conclusion(report)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def facts(report: Report) -> Iterator[str]:
    yield report.device.name
    if not report.device.simulated:  # that one has its seed in its name
        yield f"seed {report.seed}"
    yield f"{number_of(report.iterations, 'iteration')} of each arm"


def print_table(console: Console, report: Report) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case", no_wrap=True)
    for heading in ("control\ncorrupt", "fixed\ncorrupt", "seen\npending", "control\nus", "fixed\nus"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    name = None
    for case in report.cases:
        if case.case != name:
            name = case.case
            table.add_row(Text.assemble((name, "bold"), f" {case.hazard}"))
        table.add_row(
            f"  {case.variant}",
            corrupt(case.control),
            corrupt(case.fixed),
            pending(case),
            f"{case.control.call_us_median:.1f}",
            f"{case.fixed.call_us_median:.1f}",
            Text(case.verdict.value, style=STYLES[case.verdict]),
        )
    console.print(table)


def corrupt(arm: ArmOutcome) -> str:
    return f"{arm.corrupt}/{arm.iterations}"


def pending(case: CaseOutcome) -> str:
    return f"{sum(arm.pending for arm in case.arms)}/{sum(arm.iterations for arm in case.arms)}"


def title(case: CaseOutcome) -> str:
    return f"{case.case} ({case.variant})"


def notes(report: Report) -> Iterator[str]:
    yield "us: microseconds that the call under test takes on the host, median."
    kinds = Counter(case.control_kind for case in report.cases)
    if kinds:
        yield f"Controls: {'; '.join(f'{number} {kind.said}' for kind, number in kinds.items())}."
    if report.device.passed_over is not None:
        yield f"{report.device.passed_over} was passed over: this build has no kernels for it, as nvcc was missing."
    for case in report.cases:
        if case.half is not None:
            yield f"{title(case)}, half of the fix, not judged: {corrupt(case.half)} corrupt. {case.half.how}"
    if not report.device.has_batched_copy:
        yield "This driver has no batched copy: both source orders are copies in stream order here."


def complaints(report: Report) -> Iterator[str]:
    """One line for each case that does not prove what it should."""
    for case in report.cases:
        if case.verdict is Verdict.FIX_FAILED:
            yield f"FAILED: {title(case)}: the fixed arm was corrupt in {corrupt(case.fixed)} iterations: our bug."
        elif case.verdict is Verdict.NOT_HELD:
            yield (
                f"NOT HELD: {title(case)}: the work was seen pending in {pending(case)} iterations only, so its arms "
                "were not compared under the same conditions."
            )
        elif case.verdict is Verdict.VACUOUS:
            clean = case.control.iterations - case.control.corrupt
            yield (
                f"VACUOUS: {title(case)}: the control stayed clean in {clean}/{case.control.iterations} iterations, so "
                "a clean fixed arm shows nothing."
            )


def conclusion(report: Report) -> str:
    """State in plain words what this run has proven, and what it has not."""
    planned = number_of(report.cases_planned, "case")
    interrupted = f"Interrupted after {len(report.cases)} of {planned}. " if report.partial else ""
    return interrupted + _proven(report)


def _proven(report: Report) -> str:
    proven = [case for case in report.cases if case.verdict is Verdict.PROVEN]
    if report.device.simulated:
        where = "on a simulated device, so for the order of operations alone"
        rest = (
            "Not proven: anything about a GPU or its driver, or about your TensorRT-LLM, which verify does not load; "
            "run this on a machine with a GPU."
        )
    else:
        where = f"on {report.device.name} with the driver of this machine"
        rest = "Not proven: anything about your TensorRT-LLM, which verify does not load; ask doctor and selfcheck."
    if not proven:
        return f"Proven: nothing. {rest}"
    cases = f"{len(proven)} of {number_of(len(report.cases), 'case')}"
    return f"Proven {where}: in {cases} the control corrupts every time and the fix never does. {rest}"
