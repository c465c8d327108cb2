"""MkDocs calls this for the files of the site, and for every page.

A link to a file of the repository outside docs/ becomes the file's name. The address of the repository is not known, so
such a link could lead nowhere from the site. It is still checked: one to a file that is not there stays a link, which
the strict build refuses. Pages that lie with a package of their own are on the site, and links lead to them.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
ELSEWHERE = {"watch/docs/hostrace.md": "hostrace.md"}  # a page of the site that lies outside docs/


def on_files(files: Any, config: Any, **_: Any) -> Any:
    from mkdocs.structure.files import File  # noqa: PLC0415  tests of the links do without MkDocs

    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return without_outside_links(markdown, page.file.src_uri)


def without_outside_links(markdown: str, source: str) -> str:
    """`source` is the page's path inside docs/."""
    folder = posixpath.dirname(source)

    def named(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        if target in ELSEWHERE:
            return f"[{found[1]}]({posixpath.relpath(ELSEWHERE[target], folder or '.')}{found[3] or ''})"
        is_outside = not target.startswith("docs/") and (ROOT / target).exists()
        return f"{found[1]} (`{target}` in the repository)" if is_outside else found[0]

    return LINK.sub(named, markdown)
