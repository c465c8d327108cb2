"""The report as one HTML page that needs nothing else: for each race its timeline, its bytes and both stacks."""

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from shlex import join
from string import Template

from hostrace.races import Race, Stack
from hostrace.report import COMPARED, Report, number_of, remedy, summary, title, where

LABELS, SPAN, RIGHT = 180, 720, 40  # widths: names of lanes, the time between use and touch, what follows
WIDTH = LABELS + SPAN + RIGHT
TOP, LANE, GAP = 20, 30, 12


def page(report: Report) -> str:
    sections = [section(race, number, "race") for number, race in enumerate(report.races, 1)]
    sections += [section(race, number, "unordered") for number, race in enumerate(report.unordered, 1)]
    sections += [section(race, number, "possible") for number, race in enumerate(report.possible, 1)]
    held = ", threads that raced were held" if report.held else ""
    return Template(text_of("page.html")).substitute(
        style=text_of("page.css"),
        headline=escape(headline(report)),
        command=escape(join(report.command)),
        verdict={"race": "failed", "silent": "proven", "possible": "proven"}.get(report.verdict, "doubtful"),
        summary=escape(f"{summary(report)}. The command ended with {report.status}{held}."),
        sections="\n".join(sections),
        notes="".join(f"<p>{escape(note)}</p>" for note in report.notes),
    )


def text_of(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def headline(report: Report) -> str:
    uses = report.numbers["guarded"]
    places = len(report.races) + len(report.unordered)
    if not places and not uses:
        return "Nothing was watched: the command made no asynchronous use of pinned memory."
    if not places:
        return f"No race was seen in {number_of(uses, 'use')} of pinned memory."
    what = "what the device still uses" if report.races else "what the device may still use"
    return f"In {'one place' if places == 1 else f'{places} places'} the host touches {what}."


def section(race: Race, number: int, kind: str) -> str:
    tag = "doubt" if kind == "possible" else "wrong"
    noticed = "touched" if race.how != COMPARED else "noticed"
    times = f"{number_of(race.times, 'time')} in {number_of(len(race.pids), 'process', 'processes')}"
    return "\n".join(
        (
            f'<section id="{kind}-{number}">',
            f'<h2>{escape(title(race))} <span class="tag {tag}">{kind}</span></h2>',
            f"<p>{escape(times)}. {escape(where(race).capitalize())}</p>",
            f'<div class="scroll" tabindex="0">{timeline(race)}</div>',
            f"<p>{escape(remedy(race))}</p>",
            bytes_bar(race),
            '<div class="stacks">',
            *stack(f"Thread {race.use_thread} enqueued", race.use_stack),
            *stack(f"Thread {race.touch_thread} ({race.thread_name}) {noticed}", race.touch_stack),
            *(stack("Where the memory was pinned", race.pinned_stack) if race.pinned_stack.frames else ()),
            "</div></section>",
        )
    )


def timeline(race: Race) -> str:
    """The stream and the threads, from the call that enqueued the use to the touch."""
    threads = list(dict.fromkeys((race.use_thread, race.touch_thread)))
    height = TOP + (1 + len(threads)) * (LANE + GAP) + 26
    begin, end = LABELS, LABELS + SPAN
    stream_top = TOP
    state = "that nothing waited for" if race.grade == "unordered" else "not finished"
    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title(race))}">',
        lane(f"stream {race.stream:#x}", stream_top),
        f'<rect class="bar pending" x="{begin}" y="{stream_top}" width="{SPAN + RIGHT}" height="{LANE}"/>',
        f'<text class="on-bar pending" x="{begin + 10}" y="{stream_top + 20}">{escape(race.use)} {state}</text>',
    ]
    for row, thread in enumerate(threads, 1):
        top = TOP + row * (LANE + GAP)
        parts.append(lane(f"thread {thread}", top))
        if thread == race.use_thread:
            parts += mark(begin, top, stream_top, "call", "enqueues")
        if thread == race.touch_thread:
            parts += mark(
                end, top, stream_top, "overwrite", race.how or {"free": "gives back"}.get(race.touch, race.touch + "s")
            )
    axis = height - 8
    parts += [
        f'<text x="{begin}" y="{axis}">{race.since_us / 1e6:,.3f} s after the start</text>',
        f'<text x="{end}" y="{axis}" text-anchor="middle">{race.age_us:,.0f} us later</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def lane(name: str, top: float) -> str:
    return f'<text class="lane" x="0" y="{top + 20}">{escape(name)}</text>'


def mark(x: float, top: float, stream_top: float, kind: str, text: str) -> Iterator[str]:
    anchor = "start" if kind == "call" else "end"
    at = x + 14 if kind == "call" else x - 14
    yield f'<line class="reach {kind}" x1="{x}" x2="{x}" y1="{top}" y2="{stream_top + LANE}"/>'
    yield f'<rect class="bar {kind}" x="{x - 6}" y="{top}" width="12" height="{LANE}" rx="2"/>'
    yield f'<text x="{at}" y="{top + 20}" text-anchor="{anchor}">{escape(text)}</text>'


def bytes_bar(race: Race) -> str:
    share = 100 * race.at / max(race.bytes, 1)
    touched = "touched" if race.how != COMPARED else "compared"
    return (
        f'<div class="bytes" title="byte {race.at} of {race.bytes}"><i style="left:{share:.2f}%"></i></div>'
        f'<p class="small">Byte {race.at:,} of {race.bytes:,}, from {race.begin:#x} on; '
        f"the first that was {touched}.</p>"
    )


def stack(heading: str, taken: Stack) -> Iterable[str]:
    started = "" if taken.started_by is None else f", Python of thread {taken.started_by}, which started it"
    yield f"<div><h3>{escape(heading + started)}</h3><ol>"
    yield from (f"<li><code>{escape(str(frame))}</code></li>" for frame in taken.frames)
    yield "</ol>"
    if taken.python and taken.native:
        yield "<details><summary>native frames</summary><ol>"
        yield from (f"<li><code>{escape(str(frame))}</code></li>" for frame in taken.native)
        yield "</ol></details>"
    yield "</div>"
