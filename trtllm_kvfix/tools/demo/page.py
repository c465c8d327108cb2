"""The report as one HTML page that needs nothing else: every answer, as it should be, without the fix, and with it."""

from collections.abc import Iterator
from datetime import datetime, timezone
from difflib import SequenceMatcher
from html import escape

from trtllm_kvfix.pages import filled, paragraphs
from trtllm_kvfix.tools.demo.outcome import AnswerRead, Report, SceneOutcome
from trtllm_kvfix.tools.demo.report import complaints, conclusion, notes, printable, summary

AGREES_MIN = 4  # letters in a row


def page(report: Report) -> str:
    return filled(
        __package__,
        subject=report.device,
        headline=headline(report),
        facts=facts(report),
        verdict="proven" if report.proven else "failed",
        conclusion=paragraphs([*complaints(report), conclusion(report)]),
        sections="\n".join(map(section, report.scenes)),
        notes=paragraphs(notes(report)),
    )


def headline(report: Report) -> str:
    where = "on a simulated device" if report.simulated else f"on {report.device}"
    if report.partial and all(scene.shown for scene in report.scenes):
        return f"{len(report.scenes)} of {report.scenes_planned} scenes ran before the interrupt, {where}"
    if report.proven:
        return f"What users read without the fixes, {where}"
    return f"Not every scene shows what it should, {where}"


def facts(report: Report) -> str:
    written = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    shown = (report.device, f"trtllm-kvfix {report.version}", "its own engine, not TensorRT-LLM", written)
    return "".join(f"<li>{escape(fact)}</li>" for fact in shown)


def section(scene: SceneOutcome) -> str:
    fixed = {(answer.user, answer.turn): answer for answer in scene.fixed.answers}
    rows = "\n".join("".join(row(answer, fixed[answer.user, answer.turn])) for answer in scene.control.answers)
    return (
        f'<section id="{scene.fix}"><h2>{escape(scene.title)}</h2>'
        f"<p>{scene.hazard}, without <code>{scene.fix}</code>. {escape(scene.without)}</p>"
        '<div class="scroll" tabindex="0"><table><thead><tr><th>user</th><th>asks</th><th>should read</th>'
        f"<th>reads without the fix</th><th>reads with it</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="sum">{escape(summary(scene))}</p></section>'
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
