"""HTML pages that need nothing else.

A command has a style and a body of its own, page.css and page.html in its package; what is around them is the same for
all commands, pages.css and pages.html.
"""

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template


def filled(package: str, *, subject: str, headline: str, **parts: str) -> str:
    """The page of a command, about something; its parts are HTML."""
    style, whole = (_text("trtllm_kvfix", name) for name in ("pages.css", "pages.html"))
    return Template(whole).substitute(
        name=f"trtllm-kvfix {package.rpartition('.')[2]}",
        subject=escape(subject),
        headline=escape(headline),
        style=style + _text(package, "page.css"),
        body=Template(_text(package, "page.html")).substitute(parts),
    )


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
