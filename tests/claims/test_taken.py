"""Figures are written anew from the rows of another commit, in words and in tables, and nothing else changes."""

from pathlib import Path

import pytest

from tests.claims import taken

PAGE = """# Cost

Before.

<!-- figures: watch_cost.csv commit={commit} measure=decode figure=us
{words} = v("median_us", arm="watched") - v("median_us", arm="plain")
-->

A step of 20 copies takes
{words} (commit {commit}).

<!-- figures: watch_cost.csv commit={commit} figure=us
watched = v("median_us", measure=f"copy {{row}} 20 0", arm="watched")
-->
<!-- given: size -->

| bytes | size | watched |
| --- | ---: | ---: |
| 256 | 12 | {small} |
| 4096 | 12 | {large} us |

# Elsewhere

Commit {other} stays.
"""
OLD = PAGE.format(commit="1ded35c", words="189 us more", small="8.9", large="10.1", other="1ded35c")
NEW = PAGE.format(commit="3ff73ff", words="249 us more", small="7.6", large="13.5", other="1ded35c")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(taken, "pages", lambda: [tmp_path / "cost.md"])
    (tmp_path / "cost.md").write_text(OLD, encoding="utf-8")
    return tmp_path / "cost.md"


def test_words_cells_and_commits_are_those_of_the_new_rows(page: Path) -> None:
    assert taken.take("watch_cost.csv", "1ded35c", "3ff73ff") == [page]
    assert page.read_text(encoding="utf-8") == NEW


def test_a_page_that_does_not_quote_the_old_rows_is_left_alone(page: Path) -> None:
    assert taken.take("watch_cost.csv", "ed037df", "3ff73ff") == []
    assert taken.take("loop.csv", "1ded35c", "3ff73ff") == []
    assert page.read_text(encoding="utf-8") == OLD
