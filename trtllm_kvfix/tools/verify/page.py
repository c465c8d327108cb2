"""The report as one HTML page that needs nothing else: verdict, figures, and a measured timeline of every arm."""

from collections.abc import Iterator
from datetime import datetime, timezone
from html import escape
from itertools import groupby

from trtllm_kvfix.pages import filled, paragraphs
from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.tools.verify.outcome import ArmOutcome, CaseOutcome, Report, Verdict
from trtllm_kvfix.tools.verify.report import complaints, conclusion, corrupt, notes, pending
from trtllm_kvfix.tools.verify.report import facts as run_facts
from trtllm_kvfix.tools.verify.timeline import common_scale, drawn, marks

TAGS = {Verdict.PROVEN: "right", Verdict.VACUOUS: "doubt", Verdict.FIX_FAILED: "wrong", Verdict.NOT_HELD: "doubt"}


def page(report: Report) -> str:
    groups = [list(group) for _, group in groupby(report.cases, key=lambda case: case.case)]
    return filled(
        __package__,
        subject=report.device.name,
        headline=headline(report),
        facts=facts(report),
        verdict="proven" if report.proven else "failed",
        conclusion=paragraphs([*complaints(report), conclusion(report)]),
        rows="\n".join(row(case, is_first=case is group[0]) for group in groups for case in group),
        sections="\n".join(map(section, groups)),
        notes=paragraphs(notes(report)),
    )


def headline(report: Report) -> str:
    where = "On a simulated device" if report.device.simulated else f"On {report.device.name}"
    if report.proven:
        return f"{where}, every control corrupts every time. The fix never does."
    bad = sum(case.verdict is not Verdict.PROVEN for case in report.cases)
    if report.partial and not bad:
        return f"{where}, {len(report.cases)} of {number_of(report.cases_planned, 'case')} ran before the interrupt."
    do_not = form(bad, "does not show what it should", "do not show what they should")
    return f"{where}, {bad} of {number_of(len(report.cases), 'case')} {do_not}."


def facts(report: Report) -> str:
    written = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    shown = (*run_facts(report), f"trtllm-kvfix {report.version}", written)
    return "".join(f"<li>{escape(fact)}</li>" for fact in shown)


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
        yield f"<header><div><h3>{escape(what)}</h3><p>{escape(arm.how)}</p></div>{result(arm)}</header>"
        yield f'<div class="scroll" tabindex="0">{drawn(arm, scale)}</div>'
        yield f"<ol>{''.join(legend(case, arm))}</ol>"
        yield from example(arm)
        yield "</div>"


def result(arm: ArmOutcome) -> str:
    kind = "wrong" if arm.corrupt else "right"
    return f'<span class="tag {kind}">{corrupt(arm)} corrupt</span>'


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
