"""The page: it needs nothing else, and its pictures show what was measured."""

import re
from html.parser import HTMLParser
from itertools import pairwise

from trtllm_kvfix.hazards.case import Lane
from trtllm_kvfix.native import open_device
from trtllm_kvfix.tools.verify.cases import run_case
from trtllm_kvfix.tools.verify.report import LABELS, WIDTH, CaseOutcome, Scale, common_scale, drawn, page

from .doubles import AT, arm, named, outcome, report

TWO_STREAMS = (
    Lane(name="compute stream", work="kernel", early=False),
    Lane(name="copy stream", work="store", early=True),
)
SCALE = common_scale([arm()])
VOID = {"meta", "line", "rect", "path", "circle"}


class Elements(HTMLParser):
    """All elements with their attributes; fails where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.all if name == tag and kind in (attrs.get("class") or "")]


def measured() -> list[CaseOutcome]:
    device = open_device("cpu")
    cases = (named("offsets-v1"), named("store-order", "writer, any"), named("load-order"))
    return [run_case(device, case, 2, 0, lambda: None) for case in cases]


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(report(*measured()))
    elements = Elements(text)
    assert elements.open == []
    assert not re.search(r"https?:|//\w|url\(|@import|<script|<link|<img|<iframe", text)
    assert {attrs["href"] for attrs in elements.of("a")} == {"#offsets-v1", "#store-order", "#load-order"}
    assert {"offsets-v1", "store-order", "load-order"} <= {attrs.get("id") for attrs in elements.of("section")}
    assert "prefers-color-scheme: dark" in text
    assert "$" not in text


def test_the_headline_names_the_device_and_the_legend_comes_before_the_first_timeline() -> None:
    proven = outcome(arm(corrupt=4), arm())
    simulated = page(report(proven))
    assert "<h1>On a simulated device, every control corrupts every time. The fix never does.</h1>" in simulated
    assert "<h1>On NVIDIA X, every control " in page(report(proven, simulated=False, name="NVIDIA X"))
    partial = page(report(proven).model_copy(update={"cases_planned": 3}))
    assert "<h1>On a simulated device, 1 of 3 cases ran before the interrupt.</h1>" in partial
    assert simulated.index('class="legend"') < simulated.index('<svg class="timeline"')
    assert "<h3>Control: upstream&#x27;s order</h3>" in simulated


def test_every_arm_has_its_timeline_and_its_count() -> None:
    cases = measured()
    text = page(report(*cases))
    assert len(Elements(text).of("svg", "timeline")) == sum(len(case.arms) for case in cases) == 7
    assert text.count("2/2 corrupt</span>") == 3 + (cases[1].half is not None and cases[1].half.corrupt == 2)
    assert "the destination had to hold" in text


def test_the_overwrite_is_drawn_inside_the_pending_window() -> None:
    elements = Elements(drawn(arm(corrupt=4), SCALE))
    (pending,), (overwrite,) = elements.of("rect", "pending"), elements.of("rect", "overwrite")
    (gate,) = elements.of("line", "gate")
    pending_left, overwrite_left = float(pending["x"] or 0), float(overwrite["x"] or 0)
    pending_right = pending_left + float(pending["width"] or 0)
    assert pending_left < overwrite_left < overwrite_left + float(overwrite["width"] or 0) < pending_right
    assert abs(float(gate["x1"] or 0) - pending_right) < 1  # pixel
    assert len(elements.of("line", "reach")) == 1


def test_a_stream_that_ran_ahead_is_drawn_before_the_gate() -> None:
    elements = Elements(drawn(arm(corrupt=4, lanes=TWO_STREAMS), SCALE))
    (early,), (gate,) = elements.of("rect", "wrong"), elements.of("line", "gate")
    assert float(early["x"] or 0) + float(early["width"] or 0) < float(gate["x1"] or 0)
    held = TWO_STREAMS[0], Lane(name="copy stream", work="store", early=False)
    elements = Elements(drawn(arm(lanes=held), SCALE))
    (late,), (gate,) = elements.of("rect", "right"), elements.of("line", "gate")
    assert float(late["x"] or 0) > float(gate["x1"] or 0)


def test_marks_that_are_close_are_moved_apart_and_stay_inside() -> None:
    close = AT.model_copy(update={"call_us": 0.1, "disturb_us": 0.2, "opened_us": 89.9})
    elements = Elements(drawn(arm().model_copy(update={"timeline": close}), SCALE))
    places = [float(circle["cx"] or 0) for circle in elements.of("circle", "mark")]
    assert all(right - left >= 22.9 for left, right in pairwise(places))
    assert places[-1] < WIDTH


def test_the_scale_has_few_round_ticks_and_ends_inside() -> None:
    for held_us in (0.5, 3.0, 90.0, 1234.0, 98765.0):
        scale = Scale(held_us, runs_us=5 * held_us)
        ticks = list(scale.ticks())
        assert 2 <= len(ticks) <= 10
        assert ticks[0] == 0
        longest = AT.model_copy(update={"opened_us": held_us, "done_us": 6 * held_us})
        assert scale.x(longest, 0) == LABELS < scale.x(longest, held_us) < scale.x(longest, 6 * held_us) < WIDTH


def test_the_arms_of_a_case_share_their_scale() -> None:
    slow = arm().model_copy(update={"timeline": AT.model_copy(update={"opened_us": 100.0, "done_us": 110.0})})
    assert common_scale([arm(), slow]) == Scale(held_us=100.0, runs_us=40.0)


def test_failures_are_in_the_headline_and_names_are_escaped() -> None:
    text = page(report(outcome(arm(corrupt=0), arm()), name="<b>GPU</b>"))
    assert "On a simulated device, 1 of 1 case does not show what it should." in text
    assert "VACUOUS: a-case" in text
    assert "<b>GPU</b>" not in text
    assert "&lt;b&gt;GPU&lt;/b&gt;" in text
