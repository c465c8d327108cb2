"""HTML pages that need nothing else.

A command has a style and a body of its own, page.css and page.html in its package; what is around them is the same for
all commands, pages.css and pages.html.
"""

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from string import Template


def filled(
    package: str,
    *,
    version: str,
    subject: str,
    headline: str,
    facts: Iterable[str],
    proven: bool,
    conclusion: Iterable[str],
    notes: Iterable[str],
    **parts: str,
) -> str:
    """The page of a command, about something; `parts` are the HTML of its body."""
    style, whole = (_text("trtllm_kvfix", name) for name in ("pages.css", "pages.html"))
    written = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Template(whole).substitute(
        name=f"trtllm-kvfix {package.rpartition('.')[2]}",
        subject=escape(subject),
        headline=escape(headline),
        style=style + _text(package, "page.css"),
        facts="".join(f"<li>{escape(fact)}</li>" for fact in (*facts, f"trtllm-kvfix {version}", written)),
        verdict="proven" if proven else "failed",
        conclusion=_paragraphs(conclusion),
        body=Template(_text(package, "page.html")).substitute(parts),
        notes=_paragraphs(notes),
    )


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
