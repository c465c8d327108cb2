"""Figures of a page that are written anew from the rows of another commit. What words say of them is yours to read."""

import re
from pathlib import Path

from tests.claims.claims import Claim, claims_of
from tests.claims.pages import NUMBER, Block, blocks, cells, pages


def take(file: str, old: str, new: str) -> list[Path]:
    """Changes every section with a note on this file and the old commit. Returns the pages that have changed.

    `old` and `new` may be one commit whose rows were taken anew.
    """
    return [page for page in pages() if _took(page, file, old, new)]


def _took(page: Path, file: str, old: str, new: str) -> bool:
    before = text = page.read_text(encoding="utf-8")
    note = re.compile(rf"figures: {re.escape(file)}\b(?:(?!-->).)*\b{old}\b", re.DOTALL)
    sections = {block.section for block in blocks(page) if note.search(block.section)}
    if not sections:
        return False
    for section in sections:
        text = text.replace(section, re.sub(rf"\b{old}\b", new, section))
    for block in blocks(page, text):
        for claim in claims_of(block):
            if claim.rows.file == file and new in claim.commits:
                text = _in_table(text, block, claim) if block.is_table else _in_words(text, block, claim)
    page.write_text(text, encoding="utf-8")
    return text != before


def _in_table(text: str, block: Block, claim: Claim) -> str:
    lines = [line.split("|") for line in block.text.splitlines()]
    width = len(lines[0]) - 3  # without the row's label, and what stands outside
    for place, cell in enumerate(cells(block)):
        row, column = lines[2 + place // width], 2 + place % width
        for key in claim.keys:
            if key in (cell.row, cell.column) and NUMBER.search(cell.text):
                row[column] = _written(row[column], claim.numbers(key, cell))
    return text.replace(block.text, "\n".join(map("|".join, lines)))


def _in_words(text: str, block: Block, claim: Claim) -> str:
    for phrase in claim.keys:
        said = _written(phrase, claim.numbers(phrase, None))
        gaps = re.compile(r"\s+".join(map(re.escape, phrase.split())))
        begin = text.index(block.text)
        end = begin + len(block.text)
        text = text[:begin] + gaps.sub(said, text[begin:end]) + text[end:]
        block.text = gaps.sub(said, block.text)
        text = re.sub(rf"(?m)^{re.escape(phrase)} = ", f"{said} = ", text)
    return text


def _written(text: str, values: list[float]) -> str:
    left = iter(values)

    def number(found: "re.Match[str]") -> str:
        decimals = len(found.group().partition(".")[2])
        sign = "+" if found.group().startswith("+") else ""
        return f"{next(left):{sign},.{decimals}f}"

    return NUMBER.sub(number, text)
