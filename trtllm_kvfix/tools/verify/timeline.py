"""One iteration of an arm as an SVG picture: a lane for the host, and one for each stream of the device.

The part before the gate opens is what matters. What the device does after that takes many times longer on some devices,
so it has a scale of its own, and its length is written below it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from trtllm_kvfix.tools.verify.outcome import ArmOutcome, LaneOutcome, Timeline

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
    if len(arm.lanes) == 1:
        yield from bar(scale, at, 0, (at.disturb_us, at.disturbed_us), "overwrite", "overwrite")
    else:
        yield from bar(scale, at, 0, (at.disturb_us, at.disturbed_us), "watch", "waits")


def device_lane(scale: Scale, arm: ArmOutcome, lane: LaneOutcome, row: int) -> Iterator[str]:
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
