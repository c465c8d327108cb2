"""MkDocs calls this for every page. A link to a file of the repository outside docs/ becomes the file's name.

The address of the repository is not known, so such a link could lead nowhere from the site. It is still checked: one to
a file that is not there stays a link, which the strict build refuses.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return without_outside_links(markdown, page.file.src_uri)


def without_outside_links(markdown: str, source: str) -> str:
    """`source` is the page's path inside docs/."""

    def named(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), found[2]))
        is_outside = not target.startswith("docs/") and (ROOT / target).exists()
        return f"{found[1]} (`{target}` in the repository)" if is_outside else found[0]

    return LINK.sub(named, markdown)
