"""A report as a table and plain words. Nothing is counted here."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_kvfix.plurals import listed, number_of
from trtllm_kvfix.tools.terminal import wrapped
from trtllm_kvfix.tools.verify.outcome import ArmOutcome, CaseOutcome, Report, Verdict

STYLES = {
    Verdict.PROVEN: "green",
    Verdict.VACUOUS: "bold yellow",
    Verdict.FIX_FAILED: "bold red",
    Verdict.NOT_HELD: "bold yellow",
}


def print_report(console: Console, report: Report) -> None:
    """What was proven comes first, then what it was seen in."""
    for text in (conclusion(report), *complaints(report)):
        say(console, text)
    console.print()
    say(console, ", ".join(facts(report)), style="bold")
    print_table(console, report)
    for text in notes(report):
        say(console, text)


def say(console: Console, text: str, style: str = "") -> None:
    for line in wrapped(text):
        console.print(line, style=style, markup=False, highlight=False)


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
    hazards = listed(dict.fromkeys(case.hazard for case in proven))
    return f"Proven {where}: in {cases}, of {hazards}, the control corrupts every time and the fix never does. {rest}"
