"""Pages as blocks: paragraphs, tables and code, each with the notes in front of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# A number that somebody has measured, or a limit: the rest (sizes, counts of things) is not looked at.
_UNIT = r"(?:\s?(?:%|µs|us|ns|ms|GB/s)(?![\w/])|\s(?:times|points|seconds|minutes|s)\b|(?:x|s)(?![\w/.]))"
FIGURE = re.compile(rf"(?<![\w.,/^-])[-+]?\d[\d,]*(?:\.\d+)?{_UNIT}")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?")
_CELL = re.compile(r"[-+]?\d[\d,.]*\s*(?:$|\(|/|,|x|of\b|%|µs|us|ms|GB/s).*")
_NOTE = re.compile(r"<!-- (figures|given|shown by):(.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Note:
    kind: str
    text: str


@dataclass
class Block:
    page: Path
    line: int
    section: str  # its heading and all that stands below it
    text: str
    notes: list[Note] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_table(self) -> bool:
        return self.text.startswith("|")

    @property
    def words(self) -> str:
        """The text without marks, in one line."""
        return " ".join(plain(self.text).split())


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    text: str
    line: dict[str, str]  # the labels of its row's other cells, by column

    @property
    def is_figure(self) -> bool:
        return bool(_CELL.fullmatch(self.text) or FIGURE.search(self.text))


def plain(text: str) -> str:
    """The text without code, emphasis and the addresses of links."""
    text = re.sub(r"`[^`\n]*`", lambda found: "_" * len(found.group()), text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    return text.replace("*", "")


def label(text: str) -> str:
    return re.sub(r"\]\([^)\s]*\)", "]", text).replace("`", "").replace("*", "").strip(" []")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "watch/docs").glob("*.md"))]


def blocks(page: Path, text: str | None = None) -> list[Block]:
    text = page.read_text(encoding="utf-8") if text is None else text
    found = []
    for section, first in _sections(text):
        waiting: list[Note] = []
        for line, block in _parts(section, first):
            notes = [Note(kind, note.strip()) for kind, note in _NOTE.findall(block)]
            if notes:
                waiting += notes
            else:
                found.append(Block(page, line, section, block, waiting))
                waiting = []
        if waiting:
            found.append(Block(page, first, section, "", waiting))
    return found


def cells(table: Block) -> Iterator[Cell]:
    head, _, *body = table.text.splitlines()
    columns = [label(part) for part in _split(head)]
    for line in body:
        first, *rest = _split(line)
        labels = dict(zip(columns, map(label, (first, *rest)), strict=True))
        for column, text in zip(columns[1:], rest, strict=True):
            yield Cell(label(first), column, plain(text).strip(), labels)


def _split(line: str) -> list[str]:
    return [part.strip() for part in line.strip().strip("|").split("|")]


def _sections(text: str) -> Iterator[tuple[str, int]]:
    lines, begin, is_code = text.splitlines(), 0, False
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        if line.startswith("#") and not is_code and number > begin:
            yield "\n".join(lines[begin:number]), begin + 1
            begin = number
    yield "\n".join(lines[begin:]), begin + 1


def _parts(section: str, first: int) -> Iterator[tuple[int, str]]:
    """Blocks between empty lines; code and notes may have empty lines inside."""
    part: list[str] = []
    end = ""  # what ends a block in which empty lines count for nothing
    for number, line in enumerate([*section.splitlines(), ""], first):
        if not part and line.startswith("```"):
            end = "```"
        elif not part and line.startswith("<!--"):
            end = "-->"
        if end or line.strip():
            part.append(line)
        is_over = (end and line.rstrip().endswith(end) and (end != "```" or len(part) > 1)) or not (end or line.strip())
        if is_over and part:
            yield number - len(part) + (1 if end else 0), "\n".join(part)
        if is_over:
            part, end = [], ""
