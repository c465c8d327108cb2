"""Pictures that stand alone: the style of the commands' pages inside an SVG file, light and dark."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from textwrap import wrap
from typing import TypeAlias

MARGIN = 20
LINE = 18  # pixels from one line of text to the next
CHARACTER = 6.1  # width of one, about, in a line of text
Bars: TypeAlias = Sequence[tuple[float, float, str, str]]  # left, right, kind, text

OWN_STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 12px; }
text { fill: var(--ink); }
.ground { fill: var(--card); stroke: var(--line); }
.title { font-size: 14px; font-weight: 600; }
.soft { fill: var(--soft); }
.wrong-text { fill: var(--wrong); font-weight: 600; }
.right-text { fill: var(--right); font-weight: 600; }
.said { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.slot { fill: var(--track); stroke: var(--line); }
.slot.kept { fill: var(--right-wash); stroke: var(--right); }
.slot.lost { fill: var(--wrong-wash); stroke: var(--wrong); }
.slot.new { fill: var(--doubt-wash); stroke: var(--doubt); }
"""


def style() -> str:
    """Colours and timelines as the pages have them; what is for HTML alone is left out."""
    shared = files("trtllm_kvfix").joinpath("pages.css").read_text(encoding="utf-8")
    page = files("trtllm_kvfix.tools.verify").joinpath("page.css").read_text(encoding="utf-8")
    colours = shared[shared.index(":root") : shared.index("* {")]
    timelines = re.findall(r"^\.timeline [^{]+\{.*\}$", shared + page, re.MULTILINE)
    return "\n".join((colours.strip(), *timelines, OWN_STYLE.strip()))


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The whole file. The title is what a screen reader says."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<style>\n{style()}\n</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
            *parts,
            "</svg>\n",
        )
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def wrapped(x: float, y: float, words: str, width: float, kind: str = "soft") -> tuple[list[str], float]:
    """Lines that fit, and where the next one would begin."""
    lines = wrap(words, int(width / CHARACTER))
    return [text(x, y + LINE * number, line, kind) for number, line in enumerate(lines)], y + LINE * len(lines)


def lane(y: float, name: str, bars: Bars) -> list[str]:
    """A row of bars with its name, for what is explained and was not measured."""
    parts = [
        '<g class="timeline">',
        f'<text class="lane" x="130" y="{y + 21:g}" text-anchor="end">{escape(name)}</text>',
    ]
    for left, right, kind, words in bars:
        parts += [
            f'<rect class="bar {kind}" x="{left:g}" y="{y + 4:g}" width="{right - left:g}" height="26" rx="3"/>',
            text((left + right) / 2, y + 21, words, f"on-bar {kind}", "middle"),
        ]
    return [*parts, "</g>"]
