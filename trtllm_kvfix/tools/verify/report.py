"""What a run of `verify` found: the models that `--json` prints, a table with plain words, and an HTML page.

The page needs nothing else. It has the verdict, the figures, and a measured timeline of every arm. Nothing is counted
here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from itertools import groupby
from math import floor, log10

from pydantic import computed_field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_kvfix.hazards.case import ControlKind, Lane
from trtllm_kvfix.pages import filled
from trtllm_kvfix.plurals import form, listed, number_of
from trtllm_kvfix.tools.json_model import JsonModel
from trtllm_kvfix.tools.terminal import wrapped


class Verdict(str, Enum):
    PROVEN = "proven"  # the control corrupts, the fix does not
    VACUOUS = "vacuous"  # the control stayed clean, so a clean fix says nothing
    FIX_FAILED = "fix failed"
    NOT_HELD = "not held"  # the work under test was over when its source was overwritten


class DeviceInfo(JsonModel):
    name: str
    simulated: bool
    has_kernels: bool
    has_batched_copy: bool
    passed_over: str | None  # the GPU that `auto` found and could not use


class Timeline(JsonModel):
    """One iteration, in microseconds since its gate was closed, by the clock of the host."""

    iteration: int  # from 1
    call_us: float
    returned_us: float
    disturb_us: float
    disturbed_us: float
    opened_us: float  # the work was seen pending for the last time, and the gate is opened
    held_done_us: float  # with two streams, the work behind the gate was seen done, so what waits for it may begin
    done_us: float  # everything was seen done: the device itself was done a little earlier


class Example(JsonModel):
    """The first wrong word of an iteration that was corrupt."""

    iteration: int
    index: list[int]
    expected: int
    found: int
    words_wrong: int
    words: int


class ArmOutcome(JsonModel):
    how: str
    meanwhile: str
    effect: str
    iterations: int
    corrupt: int
    pending: int  # iterations in which the work under test was seen pending before the gate was opened
    call_us_median: float
    lanes: list[Lane]
    timeline: Timeline
    example: Example | None


class CaseOutcome(JsonModel):
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


class CaseNotShown(JsonModel):
    case: str
    variant: str
    hazard: str
    why: str
    looked: bool  # the device does it right; or else this device cannot be asked


class VerifyReport(JsonModel):
    """`verify --json`."""

    version: str
    device: DeviceInfo
    iterations: int
    seed: int
    cases: list[CaseOutcome]
    not_shown: list[CaseNotShown]
    cases_planned: int  # Ctrl-C leaves fewer, each of which ran to its end

    @computed_field  # type: ignore[prop-decorator]
    @property
    def partial(self) -> bool:
        return len(self.cases) + len(self.not_shown) < self.cases_planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def proven(self) -> bool:
        return not self.partial and all(case.verdict is Verdict.PROVEN for case in self.cases)


# ---- the text ----

# A verdict on the page, and that in a terminal.
TAGS = {Verdict.PROVEN: "right", Verdict.VACUOUS: "doubt", Verdict.FIX_FAILED: "wrong", Verdict.NOT_HELD: "doubt"}
STYLES = {"right": "green", "doubt": "bold yellow", "wrong": "bold red"}


def print_report(console: Console, report: VerifyReport) -> None:
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


def facts(report: VerifyReport) -> Iterator[str]:
    yield report.device.name
    if not report.device.simulated:  # that one has its seed in its name
        yield f"seed {report.seed}"
    yield f"{number_of(report.iterations, 'iteration')} of each arm"


def print_table(console: Console, report: VerifyReport) -> None:
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
            Text(case.verdict.value, style=STYLES[TAGS[case.verdict]]),
        )
    console.print(table)


def corrupt(arm: ArmOutcome) -> str:
    return f"{arm.corrupt}/{arm.iterations}"


def pending(case: CaseOutcome) -> str:
    return f"{sum(arm.pending for arm in case.arms)}/{sum(arm.iterations for arm in case.arms)}"


def title(case: CaseOutcome) -> str:
    return f"{case.case} ({case.variant})"


def notes(report: VerifyReport) -> Iterator[str]:
    yield "us: microseconds that the call under test takes on the host, median."
    kinds = Counter(case.control_kind for case in report.cases)
    if kinds:
        yield f"Controls: {'; '.join(f'{number} {kind.said}' for kind, number in kinds.items())}."
    if report.device.passed_over is not None:
        yield f"{report.device.passed_over} was passed over: this build has no kernels for it, as nvcc was missing."
    yield from not_shown(report)
    for case in report.cases:
        if case.half is not None:
            yield f"{title(case)}, half of the fix, not judged: {corrupt(case.half)} corrupt. {case.half.how}"
    if not report.device.has_batched_copy:
        yield "This driver has no batched copy: both source orders are copies in stream order here."


def not_shown(report: VerifyReport) -> Iterator[str]:
    """One line for each reason, with the variants that it holds for."""
    variants: dict[tuple[str, str], list[str]] = {}
    for each in report.not_shown:
        variants.setdefault((each.case, each.why), []).append(each.variant)
    for (case, why), those in variants.items():
        yield f"Not shown: {case} ({'; '.join(those)}): {why}."


def complaints(report: VerifyReport) -> Iterator[str]:
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


def conclusion(report: VerifyReport) -> str:
    """State in plain words what this run has proven, and what it has not."""
    planned = number_of(report.cases_planned, "case")
    interrupted = f"Interrupted after {len(report.cases)} of {planned}. " if report.partial else ""
    return interrupted + _proven(report)


def _proven(report: VerifyReport) -> str:
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
    if not report.cases and report.not_shown:
        return f"This machine has nothing to show here, and the reasons stand below. {rest}"
    if not proven:
        return f"Proven: nothing. {rest}"
    cases = f"{len(proven)} of {number_of(len(report.cases), 'case')}"
    hazards = listed(dict.fromkeys(case.hazard for case in proven))
    return f"Proven {where}: in {cases}, of {hazards}, the control corrupts every time and the fix never does. {rest}"


# ---- a timeline ----

LABELS, HELD, RUNS, RIGHT = 128, 500, 260, 28  # widths: names of lanes, gate closed, gate open, margin
WIDTH = LABELS + HELD + RUNS + RIGHT
TOP, LANE, GAP, AXIS = 44, 34, 12, 34
MARK_RADIUS = 10
TICKS_MAX = 8
CHARACTER = 6.6  # width of one, about, in the font size of a bar


@dataclass(frozen=True)
class Scale:
    """Microseconds to pixels, the same for all arms of a case before the gate is opened, and again after it."""

    held_us: float
    runs_us: float

    def x(self, at: Timeline, us: float) -> float:
        held = min(us, at.opened_us) / self.held_us * HELD
        return LABELS + held + max(us - at.opened_us, 0.0) / self.runs_us * RUNS

    def ticks(self) -> Iterator[float]:
        """Multiples of 1, 2 or 5 times a power of ten, while the gate is closed."""
        rough = self.held_us / TICKS_MAX
        power: float = 10.0 ** floor(log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        yield from (step * number for number in range(int(self.held_us / step) + 1))


def common_scale(arms: Sequence[ArmOutcome]) -> Scale:
    timelines = [arm.timeline for arm in arms]
    return Scale(max(at.opened_us for at in timelines), max(at.done_us - at.opened_us for at in timelines))


def marks(at: Timeline) -> tuple[float, float, float, float]:
    """The moments that the legend explains, numbered from 1: call, disturbance, gate opened, seen done."""
    return at.call_us, at.disturb_us, at.opened_us, at.done_us


def drawn(arm: ArmOutcome, scale: Scale) -> str:
    height = TOP + (1 + len(arm.lanes)) * (LANE + GAP) + AXIS
    return "\n".join(
        (
            f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description(arm))}">',
            *axis(scale, arm.timeline, height),
            *gate(scale, arm),
            *host_lane(scale, arm),
            *(part for row, lane in enumerate(arm.lanes, 1) for part in device_lane(scale, arm, lane, row)),
            *reach(scale, arm),
            *numbers(scale, arm.timeline),
            "</svg>",
        )
    )


def description(arm: ArmOutcome) -> str:
    at = arm.timeline
    return (
        f"Call from {at.call_us:.1f} to {at.returned_us:.1f} microseconds; {arm.meanwhile}, from {at.disturb_us:.1f} "
        f"to {at.disturbed_us:.1f}; gate opened at {at.opened_us:.1f}; seen done at {at.done_us:.1f}: {arm.effect}"
    )


def top_of(row: int) -> float:
    return TOP + row * (LANE + GAP)


def axis(scale: Scale, at: Timeline, height: float) -> Iterator[str]:
    bottom = height - AXIS + 4
    opened, done = scale.x(at, at.opened_us), scale.x(at, at.done_us)
    for us in scale.ticks():
        x = scale.x(at, us)
        if us > at.opened_us:
            break
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        if x < opened - 20:
            yield f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{us:g}</text>'
    yield f'<text class="tick" x="{LABELS - 12}" y="{bottom + 15}" text-anchor="end">µs</text>'
    y = bottom + 6
    yield f'<path class="span" d="M{opened:.1f} {y - 4}v8M{done:.1f} {y - 4}v8M{opened:.1f} {y}H{done:.1f}"/>'
    text = f"{at.done_us - at.opened_us:.0f} µs, another scale"
    yield f'<text class="tick" x="{opened:.1f}" y="{bottom + 22}">{text}</text>'


def gate(scale: Scale, arm: ArmOutcome) -> Iterator[str]:
    """The time in which the device may not begin what is behind the gate, over the lanes that it holds."""
    left, right = scale.x(arm.timeline, 0), scale.x(arm.timeline, arm.timeline.opened_us)
    for row, lane in enumerate(arm.lanes, 1):
        if not lane.early:
            yield f'<rect class="held" x="{left:.1f}" y="{top_of(row)}" width="{right - left:.1f}" height="{LANE}"/>'
    bottom = top_of(len(arm.lanes)) + LANE
    yield f'<line class="gate" x1="{right:.1f}" y1="{top_of(0) - 6}" x2="{right:.1f}" y2="{bottom + 4}"/>'


def host_lane(scale: Scale, arm: ArmOutcome) -> Iterator[str]:
    at = arm.timeline
    yield label(0, "host")
    yield from bar(scale, at, 0, (at.call_us, at.returned_us), "call", "call")
    kind, text = ("overwrite", "overwrite") if len(arm.lanes) == 1 else ("watch", "waits")
    yield from bar(scale, at, 0, (at.disturb_us, at.disturbed_us), kind, text)


def device_lane(scale: Scale, arm: ArmOutcome, lane: Lane, row: int) -> Iterator[str]:
    at = arm.timeline
    kind = "wrong" if arm.corrupt else "right"
    yield label(row, lane.name)
    if lane.early:
        yield from bar(scale, at, row, (at.call_us, at.disturbed_us), kind, f"{lane.work}: over too early", "too early")
        return
    is_last = lane is arm.lanes[-1]
    begin_us = at.held_done_us if is_last and len(arm.lanes) > 1 else at.opened_us
    yield from bar(scale, at, row, (at.call_us, begin_us), "pending", f"{lane.work}: pending", "pending")
    if is_last:
        text = "corrupt" if arm.corrupt else "intact"
        yield from bar(scale, at, row, (begin_us, at.done_us), kind, f"runs: {text}", text)
    else:
        yield from bar(scale, at, row, (begin_us, at.held_done_us), "ran", "runs")


def label(row: int, name: str) -> str:
    y = top_of(row) + LANE / 2 + 4
    return f'<text class="lane" x="{LABELS - 12}" y="{y}" text-anchor="end">{escape(name)}</text>'


def bar(scale: Scale, at: Timeline, row: int, us: tuple[float, float], kind: str, *texts: str) -> Iterator[str]:
    """A bar of at least two pixels, with the first text that fits."""
    left, right = (scale.x(at, end) for end in us)
    width = max(right - left, 2.0)
    y = top_of(row) + 4
    yield f'<rect class="bar {kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 8}" rx="3"/>'
    text = next((text for text in texts if len(text) * CHARACTER < width - 8), None)
    if text is not None:
        place = f'x="{left + width / 2:.1f}" y="{y + LANE / 2}" text-anchor="middle"'
        yield f'<text class="on-bar {kind}" {place}>{escape(text)}</text>'


def reach(scale: Scale, arm: ArmOutcome) -> Iterator[str]:
    """An arrow from the overwriting host into the pending window of the device, where there is one stream only."""
    if len(arm.lanes) > 1:
        return
    at = arm.timeline
    x = scale.x(at, (at.disturb_us + at.disturbed_us) / 2)
    tip = top_of(1) + 3
    yield f'<line class="reach" x1="{x:.1f}" y1="{top_of(0) + LANE - 4}" x2="{x:.1f}" y2="{tip}"/>'
    yield f'<path class="reach-tip" d="M{x - 4:.1f} {tip - 6}h8l-4 7z"/>'


def numbers(scale: Scale, at: Timeline) -> Iterator[str]:
    """Numbered circles, moved apart where moments are close, each with a line to its moment."""
    apart = 2 * MARK_RADIUS + 3
    moments = [scale.x(at, us) for us in marks(at)]
    places: list[float] = []
    for x in moments:
        places.append(max(x, places[-1] + apart) if places else x)
    limit: float = WIDTH - MARK_RADIUS - 1
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - apart
    for number, (x, moment) in enumerate(zip(places, moments, strict=True), 1):
        yield f'<path class="leader" d="M{x:.1f} {MARK_RADIUS + 12}L{moment:.1f} {TOP - 4}V{TOP + 2}"/>'
        yield f'<circle class="mark" cx="{x:.1f}" cy="{MARK_RADIUS + 2}" r="{MARK_RADIUS}"/>'
        yield f'<text class="mark" x="{x:.1f}" y="{MARK_RADIUS + 6}" text-anchor="middle">{number}</text>'


# ---- the page ----


def page(report: VerifyReport) -> str:
    groups = [list(group) for _, group in groupby(report.cases, key=lambda case: case.case)]
    return filled(
        __package__,
        version=report.version,
        subject=report.device.name,
        headline=headline(report),
        facts=facts(report),
        proven=report.proven,
        conclusion=[*complaints(report), conclusion(report)],
        rows="\n".join(row(case, is_first=case is group[0]) for group in groups for case in group),
        sections="\n".join(map(section, groups)),
        notes=notes(report),
    )


def headline(report: VerifyReport) -> str:
    where = "On a simulated device" if report.device.simulated else f"On {report.device.name}"
    if not report.cases and report.not_shown:
        return f"{where}, there is nothing to show here."
    if report.proven:
        return f"{where}, every control corrupts every time. The fix never does."
    bad = sum(case.verdict is not Verdict.PROVEN for case in report.cases)
    if report.partial and not bad:
        return f"{where}, {len(report.cases)} of {number_of(report.cases_planned, 'case')} ran before the interrupt."
    do_not = form(bad, "does not show what it should", "do not show what they should")
    return f"{where}, {bad} of {number_of(len(report.cases), 'case')} {do_not}."


def row(case: CaseOutcome, *, is_first: bool) -> str:
    name = f'<a href="#{case.case}">{case.case}</a>' if is_first else ""
    numbers = (pending(case), f"{case.control.call_us_median:.1f}", f"{case.fixed.call_us_median:.1f}")
    words = (name, escape(case.variant), escape(case.control_kind.value))
    cells = [f"<td>{text}</td>" for text in (*words, meter(case.control), meter(case.fixed))]
    cells += [f'<td class="number">{text}</td>' for text in numbers]
    cells += [f'<td><span class="tag {TAGS[case.verdict]}">{case.verdict.value}</span></td>']
    return f'<tr class="{"first" if is_first else ""}">{"".join(cells)}</tr>'


def meter(arm: ArmOutcome) -> str:
    share = 100 * arm.corrupt / arm.iterations
    return f'<span class="meter"><i style="width:{share:.1f}%"></i></span>{corrupt(arm)}'


def section(cases: list[CaseOutcome]) -> str:
    """A case with its variants: the first is shown, the others can be opened."""
    first, *others = cases
    parts = [f'<section id="{first.case}">', f"<h2>{escape(first.title)}</h2>"]
    parts += [f"<p>{first.hazard}, <code>{first.case}</code>, {escape(first.variant)}.</p>", *arms(first)]
    for case in others:
        same = case.title == first.title
        parts += [f"<details><summary>{escape(case.variant if same else f'{case.variant}. {case.title}')}</summary>"]
        parts += [*arms(case), "</details>"]
    return "\n".join((*parts, "</section>"))


def arms(case: CaseOutcome) -> Iterator[str]:
    scale = common_scale(case.arms)
    for name, arm in (("Control", case.control), ("Half of the fix", case.half), ("Fixed", case.fixed)):
        if arm is None:
            continue
        yield '<div class="arm">'
        what = f"{name}: {case.control_kind.value}" if arm is case.control else name
        result = f'<span class="tag {"wrong" if arm.corrupt else "right"}">{corrupt(arm)} corrupt</span>'
        yield f"<header><div><h3>{escape(what)}</h3><p>{escape(arm.how)}</p></div>{result}</header>"
        yield f'<div class="scroll" tabindex="0">{drawn(arm, scale)}</div>'
        yield f"<ol>{''.join(legend(case, arm))}</ol>"
        yield from example(arm)
        yield "</div>"


def legend(case: CaseOutcome, arm: ArmOutcome) -> Iterator[str]:
    for number, (when, text) in enumerate(moments(case, arm), 1):
        cells = (("key", str(number)), ("when", when), ("what", text))
        yield "".join(("<li>", *(f'<span class="{kind}">{escape(cell)}</span>' for kind, cell in cells), "</li>"))


def moments(case: CaseOutcome, arm: ArmOutcome) -> Iterator[tuple[str, str]]:
    """Time and event of each numbered moment of a timeline."""
    at = arm.timeline
    ends = (at.returned_us, at.disturbed_us, None, None)
    texts = (
        case.call,
        arm.meanwhile,
        f"the work is still pending, as in {arm.pending}/{arm.iterations} iterations; the gate is opened",
        f"{arm.effect} (seen done)",
    )
    for begin, end, text in zip(marks(at), ends, texts, strict=True):
        yield f"{begin:.1f} µs" if end is None else f"{begin:.1f} to {end:.1f} µs", text


def example(arm: ArmOutcome) -> Iterator[str]:
    found = arm.example
    if found is not None:
        yield (
            f'<p class="example">Iteration {found.iteration}: {found.words_wrong:,} of {found.words:,} words wrong. At '
            f"<code>{found.index}</code> the destination had to hold <code>{found.expected}</code> and held "
            f"<code>{found.found}</code>.</p>"
        )
