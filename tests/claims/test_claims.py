"""Every figure of README and docs is computed from rows again, and rows say what they measured."""

import re
from pathlib import Path

import pytest

from tests.claims import trees
from tests.claims.claims import complaints
from tests.claims.pages import ROOT, Block, blocks, pages
from tests.claims.rows import RESULTS, read

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = "<!-- figures: loop.csv commit=48a90d2 metric=host_us manager=off\n{}\n-->\n\n{} (commit 48a90d2)"
IN_WORDS = '592 µs = v(workload="C-batch8-step0ms")'
TABLE = "Commit 48a90d2.\n\n<!-- figures: loop.csv commit=48a90d2 metric=host_us manager=off\n{}\n-->\n\n{}"


def found(text: str) -> list[str]:
    return [complaint for block in blocks(PAGE, text) for complaint in complaints(block)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_has_its_row(page: Path) -> None:
    assert [text for block in blocks(page) for text in complaints(block)] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("It takes 12 µs.", "no row is named for '12 µs'"),
        ("It is 1.5 times as fast, by 3%.", "no row is named for '1.5 times'"),
        ("| | a | b |\n| --- | --- | --- |\n| x | 12 | 13 |", "no row is named for '12' in row 'x', column 'a'"),
        (FIGURES.format(IN_WORDS, "It takes 593 µs."), "its note names '592 µs', which the text does not say"),
        (FIGURES.format(IN_WORDS.replace("592", "593"), "It takes 593 µs."), "the text says 593, the rows 592.304"),
        (FIGURES.format(IN_WORDS.replace("batch8", "batch9"), "It takes 592 µs."), "no row of bench/results/loop.csv"),
        (FIGURES.format("592 µs = v()", "It takes 592 µs."), "rows of bench/results/loop.csv have"),
        (FIGURES.format(IN_WORDS, "592 µs.").replace("(commit 48a90d2)", ""), "figures are of commit 48a90d2"),
        (
            FIGURES.format(IN_WORDS, "592 µs.").replace("commit=48a90d2 ", "date=2026-11-22T06 "),
            "the note on loop.csv names no commit",
        ),
        (FIGURES.format(IN_WORDS, "592 µs or 1 ms."), "no row is named for '1 ms'"),
        ("<!-- given: 2 ms -->\n\nA step of 3 ms.", "its note names '2 ms', which the text does not say"),
        ("<!-- shown by: tests/claims/pages.py -->\n\nIt takes 3 ms.", "does not read benchmarks.md"),
    ],
)
def test_a_figure_that_no_row_has_is_found(text: str, complaint: str) -> None:
    assert complaint in "\n".join(found(text))


@pytest.mark.parametrize(
    "text",
    [
        FIGURES.format(IN_WORDS, "It takes 592 µs."),
        "<!-- given: 2 ms -->\n\nA step of 2 ms.",
        "Blocks of 64 KiB, 8 of them, `sleep 3 s`, 2^62 ms and 1 x 64 x 64.",
    ],
)
def test_what_is_no_figure_or_has_its_row_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_cells_are_compared_by_row_and_by_column() -> None:
    by_column = 'host = v(workload=f"C-batch{row}-step0ms")'
    by_row = 'host = v(workload=f"C-batch{column}-step0ms")'
    table = "| batch | host |\n| --- | --- |\n| 8 | 592 |\n| 256 | {} |"
    assert found(TABLE.format(by_column, table.format("2,863"))) == []
    (complaint,) = found(TABLE.format(by_column, table.format("2,864")))
    assert "row '256', column 'host': the text says 2,864, the rows 2863.46" in complaint
    assert found(TABLE.format(by_row, "| | 8 | 256 |\n| --- | --- | --- |\n| host | 592 | 2,863 |")) == []


def test_every_file_of_rows_that_have_a_commit_says_what_it_measures() -> None:
    quoted = {name for page in pages() for name in re.findall(r"<!-- figures: (\S+)", page.read_text(encoding="utf-8"))}
    assert quoted <= set(trees.measured())
    with_commits = {path.name for path in RESULTS.glob("*.csv") if "commit" in read(path.name)[0]}
    assert with_commits == set(trees.measured())


def test_notes_that_nobody_reads_are_found() -> None:
    text = "<!-- given: 2 ms -->"
    assert [Block(PAGE, 1, text, "", block.notes) for block in blocks(PAGE, text)] == blocks(PAGE, text)
    assert found(text) != []
