"""Pages are of a width that can be read, and every reference can be followed."""

from pathlib import Path

import pytest

from tests.claims.pages import ROOT
from tests.prose import PAGES
from tests.prose.references import anchors, broken, defined, missing, unlinked
from tests.prose.width import joined_lists, too_wide, wrapped
from tests.tracked import tracked_files

HISTORY = "CHANGELOG.md"  # names what is gone
FILES = {str(file.relative_to(ROOT)) for file in tracked_files()}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_is_too_wide(page: Path) -> None:
    assert too_wide(page.read_text(encoding="utf-8")) == [], "run: python -m tests.prose"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_list_stands_apart(page: Path) -> None:
    assert joined_lists(page.read_text(encoding="utf-8")) == [], "put an empty line above"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_reference_can_be_followed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert unlinked(text) == [], "write [T#1] and run: python -m tests.prose"
    assert list(broken(page, text)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != HISTORY], ids=named)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8"), FILES) == []


def test_wrapping_changes_no_word_and_leaves_tables_and_code_alone() -> None:
    wide = "word " * 40
    text = f"# {wide}\n\n- {wide}and\n  more\n- short\n\n| {wide} |\n\n```\n{wide}\n```\n<!-- {wide}\n{wide}\n-->\n"
    assert too_wide(text) == [f"- {wide}and"]
    assert too_wide(wrapped(text)) == []
    assert wrapped(text).split() == text.split()
    assert wrapped(wrapped(text)) == wrapped(text)
    assert wrapped(text).count(wide) == 5
    code = "word " * 23 + "`some code of several words` and more"
    assert wrapped(code) == "word " * 22 + "word\n`some code of several words` and more"


def test_lists_without_an_empty_line_above_are_found() -> None:
    assert joined_lists("Three:\n1. one\n2. two\n") == ["1. one"]
    assert joined_lists("Two:\n\n- one\n  and more\n- two\n\n  below two\n- three\n\nA - b.\n") == []
    assert joined_lists("```\ncode\n- c\n```\n") == []


def test_references_without_a_link_are_found() -> None:
    assert unlinked("It is T#15546.") == ["T#15546"]
    assert unlinked("It is [T#15546].") == ["T#15546"]
    assert unlinked("It is [T#15546].\n\n[T#15546]: https://github.com/NVIDIA/TensorRT-LLM/pull/15547\n") == ["T#15546"]
    assert unlinked("[T#1](https://github.com/NVIDIA/TensorRT-LLM/pull/2)") == ["T#1"]
    assert unlinked("[T#1](https://github.com/NVIDIA/TensorRT-LLM/pull/1)") == []
    page = defined("It is [T#15546] and [V#1], not `[T#2]`.\n")
    assert unlinked(page) == []
    assert page.endswith("/vllm-project/vllm/pull/1\n") and defined(page) == page


def test_links_that_lead_nowhere_are_found() -> None:
    page = ROOT / "docs" / "support.md"
    assert list(broken(page, "[a](support.md#settings), [b](#settings), [c](https://example.org), [d](hazards)")) == []
    assert list(broken(page, "[a](nowhere.md)")) == ["nowhere.md: there is no nowhere.md"]
    assert list(broken(page, "[a](#nowhere)")) == ["#nowhere: support.md has no heading for #nowhere"]
    assert anchors("# H1: a `b`, c\n```\n# no\n```\n") == {"h1-a-b-c"}


def test_files_that_are_gone_are_found() -> None:
    files = {"tests/core/test_a.py", "trtllm_kvfix/tools/a.py"}
    assert missing("`tests/core/test_a.py --x`, `test_a.py`, `tests/core/`, `tools/a.py`, `b.py`", files) == []
    assert missing("`tests/test_ROOM.py`, `my/b.py`\n```\ntests/b.py\n```\n<!-- `tests/b.py` -->", files) == []
    assert missing("`tools/b.py`, `python tests/b.py`, `test_b.py`", files) == ["tools/b.py", "tests/b.py", "test_b.py"]
