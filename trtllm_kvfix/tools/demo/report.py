"""What a run of `demo` found: the models that `--json` prints, a table of what was read, plain words, and an HTML page.

Nothing is counted here.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from html import escape
from io import StringIO

from pydantic import computed_field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_kvfix.canary.canary import OBSERVES, CanaryReport, sentence
from trtllm_kvfix.pages import filled
from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.tools.json_model import JsonModel


class AnswerRead(JsonModel):
    user: str
    turn: int  # from 1
    asked: str
    expected: str
    read: str
    right: bool
    from_whom: str | None  # in whose notes a wrong answer stands
    in_another_voice: bool  # the right letters, shouted or hushed by another's adapter


HEARD = ("H1", "H2", "H5", "H8")  # by a canary; what is computed from wrong inputs never changes


class ChatOutcome(JsonModel):
    answers: list[AnswerRead]
    steps: int
    canary: CanaryReport | None = None

    @property
    def is_silent(self) -> bool:
        """Its canary observes, and has found nothing."""
        return self.canary is None or (self.canary.state == OBSERVES and not self.canary.counts)

    @property
    def wrong(self) -> list[AnswerRead]:
        return [answer for answer in self.answers if not answer.right]

    @property
    def foreign(self) -> list[AnswerRead]:
        return [answer for answer in self.answers if answer.from_whom is not None]


class SceneOutcome(JsonModel):
    fix: str
    hazard: str
    title: str
    without: str
    manager: str
    control: ChatOutcome
    fixed: ChatOutcome

    @property
    def pairs(self) -> list[tuple[AnswerRead, AnswerRead]]:
        """Each answer without the fix, and with it."""
        return list(zip(self.control.answers, self.fixed.answers, strict=True))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shown(self) -> bool:
        """Without the fix answers are wrong, with it none is; and a canary speaks of what it can see, and only then."""
        return bool(self.control.wrong) and not self.fixed.wrong and self.fixed.is_silent and not self.is_unheard

    @property
    def is_unheard(self) -> bool:
        """There is a canary, and it should have spoken without the fix."""
        return self.control.canary is not None and self.hazard in HEARD and not self.control.canary.counts


class DemoReport(JsonModel):
    """`demo --json`."""

    version: str
    device: str
    simulated: bool
    seed: int
    scenes: list[SceneOutcome]
    scenes_planned: int  # Ctrl-C leaves fewer, each of which was played to its end

    @computed_field  # type: ignore[prop-decorator]
    @property
    def partial(self) -> bool:
        return len(self.scenes) < self.scenes_planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def proven(self) -> bool:
        return not self.partial and all(scene.shown for scene in self.scenes)


SHOWN = 4  # answers of a scene: a page shows all
LETTERS = 26  # of an answer, in a narrow terminal
PICTURE_COLUMNS, PICTURE_LETTERS = 108, 40


class Printer:
    """Prints scene by scene, so that a waiting reader sees what has been found."""

    def __init__(self, console: Console, letters: int = LETTERS) -> None:
        self._console = console
        self._letters = letters

    def begin(self, device: str, scenes: int) -> None:
        self._say(f"{device}: {number_of(scenes, 'chat')}, each played twice: without one fix, and with all", "bold")

    def scene(self, scene: SceneOutcome) -> None:
        self._say("")
        self._say(f"{scene.fix} ({scene.hazard})", "bold")
        self._say(scene.title + ".")
        self._console.print(_table(scene, self._letters))
        self._say(summary(scene))
        if scene.control.canary is not None:
            self._say(heard(scene.control.canary))

    def end(self, report: DemoReport) -> None:
        self._say("")
        for line in (*notes(report), *complaints(report), conclusion(report)):
            self._say(line)

    def _say(self, line: str, style: str = "") -> None:
        # A terminal wraps by itself, so that what is copied out of it has no breaks; a picture cannot.
        wraps = not self._console.record
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=wraps)


def picture(report: DemoReport) -> str:
    """Draw the terminal's text as SVG that fetches nothing from elsewhere."""
    console = Console(record=True, file=StringIO(), width=PICTURE_COLUMNS, force_terminal=True)
    printer = Printer(console, PICTURE_LETTERS)
    printer.begin(report.device, len(report.scenes))
    for scene in report.scenes:
        printer.scene(scene)
    printer.end(report)
    drawn = console.export_svg(title="trtllm-kvfix demo", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def _table(scene: SceneOutcome, letters: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("user: prompt\n  should read", "\nreads without the fix", "\nwhose text", "\nwith it"):
        table.add_column(heading, no_wrap=True)
    for answer, with_it in clearest(scene):
        prompt = short(f"{answer.user}: {answer.asked.strip()} …", letters + 2)
        table.add_row(
            Text(f"{prompt}\n  {short(answer.expected, letters)}"),
            Text(f"\n{short(answer.read, letters)}", style="green" if answer.right else "red"),
            Text(f"\n{whose_text(answer)}"),
            Text("\nright", style="green") if with_it.right else Text(f"\n{short(with_it.read, letters)}", "bold red"),
        )
    return table


def whose_text(answer: AnswerRead) -> str:
    if answer.from_whom is not None:
        return f"{answer.from_whom}'s"
    if answer.in_another_voice:
        return "other voice"
    return f"{answer.user}'s" if answer.right else "nobody's"


def clearest(scene: SceneOutcome) -> list[tuple[AnswerRead, AnswerRead]]:
    """First those with another user's text, then other wrong ones."""
    return sorted(scene.pairs, key=lambda pair: (pair[0].from_whom is None, pair[0].right))[:SHOWN]


def short(text: str, letters: int) -> str:
    text = printable(text)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def printable(text: str, nothing: str = "(nothing)") -> str:
    return text.replace("\n", "⏎").replace("\r", "⏎") or nothing


def summary(scene: SceneOutcome) -> str:
    control, total = scene.control, len(scene.control.answers)
    are = form(len(control.wrong), "is", "are")
    text = f"Without: {len(control.wrong)} of {number_of(total, 'answer')} {are} wrong"
    whose = sorted({answer.from_whom for answer in control.foreign if answer.from_whom})
    if whose:
        carry = form(len(control.foreign), "carries", "carry")
        text += f", {len(control.foreign)} of them {carry} the text of {' or '.join(whose)}"
    voices = sum(answer.in_another_voice for answer in control.answers)
    if voices:
        text += f", {voices} of them {form(voices, 'is', 'are')} in another user's voice"
    return f"{text}. With: {len(scene.fixed.wrong)} of {total}."


def heard(canary: CanaryReport) -> str:
    """What the canary said without the fix."""
    if canary.state != OBSERVES:
        return f"The canary {canary.state}."
    if not canary.findings:
        return "The canary is silent: what is computed from wrong inputs is wrong from birth, and never changes."
    changed, unfilled = (canary.counts.get(kind, 0) for kind in ("changed", "unfilled"))
    found = [f"{number_of(changed, 'block')} changed"] * bool(changed)
    found += [f"{number_of(unfilled, 'block')} reused that nobody filled"] * bool(unfilled)
    return (
        f"The canary: {', '.join(found)}. First, in step {canary.findings[0].wrong_at}: {sentence(canary.findings[0])}."
    )


def notes(report: DemoReport) -> Iterator[str]:
    if report.simulated:
        yield (
            "The device is simulated: numpy computes, and streams, copies and events guarantee only what CUDA "
            "guarantees. It shows the order of operations, not speed."
        )
    yield (
        "We delay each copy as long as CUDA allows, as a busy device may. A "
        "control is this package's engine with the named protection taken out, driven as upstream drives it; it is not "
        "TensorRT-LLM."
    )


def complaints(report: DemoReport) -> Iterator[str]:
    for scene in report.scenes:
        if scene.fixed.wrong:
            wrong = len(scene.fixed.wrong)
            are = f"{number_of(wrong, 'answer')} {form(wrong, 'is', 'are')}"
            yield f"{scene.fix}: {are} wrong although every fix is on. This is a bug."
        if not scene.fixed.is_silent:
            yield f"{scene.fix}: the canary is not silent although every fix is on. This is a bug."
        if scene.is_unheard:
            yield f"{scene.fix}: the canary says nothing without it. This is a bug."
        if not scene.control.wrong:
            yield f"{scene.fix}: no answer is wrong without it, so the scene shows nothing. This is a bug."


def conclusion(report: DemoReport) -> str:
    wrong = sum(len(scene.control.wrong) for scene in report.scenes)
    foreign = sum(len(scene.control.foreign) for scene in report.scenes)
    answers = sum(len(scene.control.answers) for scene in report.scenes)
    fixed = sum(len(scene.fixed.wrong) for scene in report.scenes)
    where = "On a simulated device" if report.simulated else f"On {report.device}"
    planned = number_of(report.scenes_planned, "scene")
    played = f"Interrupted after {len(report.scenes)} of {planned}. " if report.partial else ""
    if not report.scenes:
        return f"{played}Nothing was shown."
    return (
        f"{played}{where}, {wrong} of {number_of(answers, 'answer')} {form(wrong, 'was', 'were')} wrong without the "
        f"fixes, {foreign} of them with another user's text; "
        f"with the fixes, {fixed} {form(fixed, 'was', 'were')} wrong."
    )


AGREES_MIN = 4  # letters in a row


def page(report: DemoReport) -> str:
    return filled(
        __package__,
        version=report.version,
        subject=report.device,
        headline=headline(report),
        facts=(report.device, "its own engine, not TensorRT-LLM"),
        proven=report.proven,
        conclusion=[*complaints(report), conclusion(report)],
        sections="\n".join(map(section, report.scenes)),
        notes=notes(report),
    )


def headline(report: DemoReport) -> str:
    where = "on a simulated device" if report.simulated else f"on {report.device}"
    if report.partial and all(scene.shown for scene in report.scenes):
        return f"{len(report.scenes)} of {report.scenes_planned} scenes ran before the interrupt, {where}"
    if report.proven:
        return f"What users read without the fixes, {where}"
    return f"Not every scene shows what it should, {where}"


def section(scene: SceneOutcome) -> str:
    rows = "\n".join("".join(row(*pair)) for pair in scene.pairs)
    canary = scene.control.canary
    told = "" if canary is None else f"<p>{escape(heard(canary))}</p>"
    return (
        f'<section id="{scene.fix}"><h2>{escape(scene.title)}</h2>'
        f"<p>{scene.hazard}, without <code>{scene.fix}</code>. {escape(scene.without)}</p>"
        '<div class="scroll" tabindex="0"><table><thead><tr><th>user</th><th>asks</th><th>should read</th>'
        f"<th>reads without the fix</th><th>reads with it</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="sum">{escape(summary(scene))}</p>{told}</section>'
    )


def row(answer: AnswerRead, fixed: AnswerRead) -> Iterator[str]:
    yield f"<tr><td><b>{escape(answer.user)}</b></td><td>{escape(answer.asked.strip())} …</td>"
    yield f"<td>{escape(answer.expected)}</td>"
    for one in (answer, fixed):
        yield f'<td class="{"right" if one.right else "wrong"}">{marked(one)}{tag(one)}</td>'
    yield "</tr>"


def marked(answer: AnswerRead) -> str:
    """Mark the wrong part of an answer; letters that agree by chance may be marked as well."""
    if answer.right:
        return escape(answer.read)
    text, at = [], 0
    for _, begin, size in SequenceMatcher(None, answer.expected, answer.read, autojunk=False).get_matching_blocks():
        if size >= AGREES_MIN or begin == 0 or answer.in_another_voice or begin == len(answer.read):
            text.append(mark(answer.read[at:begin]) + escape(printable(answer.read[begin : begin + size], "")))
            at = begin + size
    return "".join(text) or mark("(nothing)")


def mark(text: str) -> str:
    return f"<mark>{escape(printable(text))}</mark>" if text else ""


def tag(answer: AnswerRead) -> str:
    if answer.from_whom is not None:
        return f' <span class="tag wrong">{escape(answer.from_whom)}\'s text</span>'
    return ' <span class="tag doubt">another\'s voice</span>' if answer.in_another_voice else ""
