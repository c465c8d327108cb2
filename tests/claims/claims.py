"""Figures of a block are checked against rows; figures that no rule accounts for are listed."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.claims.pages import FIGURE, NUMBER, ROOT, Block, Cell, cells, label, plain
from tests.claims.rows import NoSuchRow, Rows

LET = "let "  # names what several formulas of a note have in common
WHOLE_TABLE = "this table"  # holds conditions, limits or settings alone
_HELPERS = {"min": min, "max": max, "sum": sum, "len": len, "median": median, "abs": abs, "zip": zip, "round": round}
_HELPERS |= {"int": int}


@dataclass(frozen=True)
class Claim:
    """A file, what its rows have in common, and how each phrase or label is computed from them."""

    rows: Rows
    formulas: dict[str, str]

    @property
    def keys(self) -> list[str]:
        return [key for key in self.formulas if not key.startswith(LET)]

    @property
    def commits(self) -> set[str]:
        found = set(re.findall(r'"([0-9a-f]{7}\+?)"', " ".join(self.formulas.values())))
        return found | {value for name, value in self.rows.common.items() if name == "commit"}

    def numbers(self, key: str, cell: Cell | None) -> list[float]:
        names: dict[str, Any] = {**_HELPERS, "v": self.rows.value, "each": self.rows.each}
        if cell is not None:
            names |= {"row": cell.row, "column": cell.column, "line": cell.line}
        for name, formula in self.formulas.items():
            if name.startswith(LET):
                names[name.removeprefix(LET)] = eval(formula, {"__builtins__": {}, **names})
        # The formula is ours, as the page is. Names are globals, so that comprehensions see them.
        result = eval(self.formulas[key], {"__builtins__": {}, **names})
        return [float(each) for each in (result if isinstance(result, tuple | list) else (result,))]


def claims_of(block: Block) -> list[Claim]:
    return [_claim(note.text) for note in block.notes if note.kind == "figures"]


def _claim(text: str) -> Claim:
    head, *lines = text.splitlines()
    file, *common = shlex.split(head)
    formulas: dict[str, str] = {}
    for line in lines:
        key, equals, formula = line.partition(" = ")
        if equals:
            formulas[label(key)] = formula
        else:  # a long formula goes on in the next line
            formulas[list(formulas)[-1]] += " " + line.strip()
    return Claim(Rows(file, dict(part.split("=", 1) for part in common)), formulas)


def given(block: Block) -> list[str]:
    notes = (note.text for note in block.notes if note.kind == "given")
    return [label(part) for text in notes for part in text.replace("\n", " ").split(";")]


def complaints(block: Block) -> Iterator[str]:
    """Describes each mistake in the figures of a block. None: each is computed from rows, given, or shown by a test."""
    try:
        found = list(_complaints(block))
    except (NoSuchRow, ArithmeticError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
        found = [f"{type(error).__name__}: {error}"]
    for text in found:
        yield f"{block.place}: {text}"


def _complaints(block: Block) -> Iterator[str]:
    yield from _untraceable(block)
    if any(note.kind == "shown by" for note in block.notes):
        yield from _not_shown(block)
        return
    yield from _of_table(block) if block.is_table else _of_words(block)


def _untraceable(block: Block) -> Iterator[str]:
    said = re.sub(r"<!--.*?-->", "", block.section, flags=re.DOTALL)
    for claim in claims_of(block):
        if not claim.commits:
            yield f"the note on {claim.rows.file} names no commit"
        for commit in sorted(claim.commits):
            if commit.rstrip("+") not in said:
                yield f"the section does not say that its figures are of commit {commit}"


def _not_shown(block: Block) -> Iterator[str]:
    for note in block.notes:
        test = ROOT / note.text
        if note.kind == "shown by" and not (test.exists() and block.page.name in test.read_text(encoding="utf-8")):
            yield f"{note.text} is not there, or does not read {block.page.name}"


def _of_words(block: Block) -> Iterator[str]:
    words = block.words
    spans: list[tuple[int, int]] = []
    phrases = [(claim, key) for claim in claims_of(block) for key in claim.keys]
    for claim, phrase in [*phrases, *((None, each) for each in given(block))]:
        key = " ".join(plain(phrase).split())
        places = [found.span() for found in re.finditer(rf"(?<![\w.,]){re.escape(key)}(?![\w])", words)]
        if not places:
            yield f"its note names {phrase!r}, which the text does not say"
        spans += places
        if claim is not None:
            yield from _compared(phrase, key, claim.numbers(phrase, None))
    for found in FIGURE.finditer(words):
        if not any(begin <= found.start() and found.end() <= end for begin, end in spans):
            yield f"no row is named for {found.group().strip()!r} (python -m tests.claims says how)"


def _of_table(block: Block) -> Iterator[str]:
    claims, conditions, used = claims_of(block), given(block), set[str]()
    if conditions == [WHOLE_TABLE]:
        return
    found = list(cells(block))
    is_numeric = sum(cell.is_figure for cell in found) > 1
    for cell in found:
        keys = [(claim, key) for claim in claims for key in claim.keys if key in (cell.row, cell.column)]
        used |= {key for _, key in keys} | {name for name in conditions if name in (cell.row, cell.column)}
        if not NUMBER.search(cell.text):
            continue
        if len(keys) > 1:
            yield f"two formulas for row {cell.row!r}, column {cell.column!r}"
        elif keys:
            claim, key = keys[0]
            yield from _compared(f"row {cell.row!r}, column {cell.column!r}", cell.text, claim.numbers(key, cell))
        elif cell.row not in conditions and cell.column not in conditions:
            counts = is_numeric if cell.is_figure else FIGURE.search(cell.text)
            if counts:
                yield f"no row is named for {cell.text!r} in row {cell.row!r}, column {cell.column!r}"
    for name in {*conditions, *(key for claim in claims for key in claim.keys)} - used:
        yield f"its note names {name!r}, which is no label of the table"


def _compared(place: str, text: str, computed: list[float]) -> Iterator[str]:
    shown = NUMBER.findall(text)
    if len(shown) != len(computed):
        yield f"{place}: the text has the numbers {shown}, the rows give {computed}"
        return
    for number, value in zip(shown, computed, strict=True):
        decimals = len(number.partition(".")[2])
        if abs(float(number.replace(",", "")) - value) > 0.5 * 10**-decimals * (1 + 1e-9):
            yield f"{place}: the text says {number}, the rows {value:.6g}"
