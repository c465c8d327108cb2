"""Paragraphs of at most 120 columns, and lists apart. Tables, code, notes, headings and links have their own widths."""

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

COLUMNS = 120
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s")
_BELOW_ITEM = re.compile(r"\s|[-*]\s|\d+\.\s")  # the item itself, or a paragraph that belongs to it
_LEAD = re.compile(r"\s*(?:[-*]\s+|\d+\.\s+)?")
_KEPT = "\0"  # stands for a space inside code, where no line may end
_DEFINITION = re.compile(r"\[[^\]]+\]: ")


class Part(NamedTuple):
    is_prose: bool
    lines: list[str]


def parts(text: str) -> Iterator[Part]:
    end = ""  # of code or of a note
    prose: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        begins = "" if end else "```" if stripped.startswith("```") else "-->" if stripped.startswith("<!--") else ""
        is_other = bool(end or begins) or not stripped or stripped[0] in "|#!" or bool(_DEFINITION.match(stripped))
        if is_other and prose:
            yield Part(True, prose)
            prose = []
        if is_other:
            yield Part(False, [line])
        else:
            prose.append(line)
        if end and stripped.endswith(end):
            end = ""
        elif begins and not (begins == "-->" and stripped.endswith(begins)):
            end = begins
    if prose:
        yield Part(True, prose)


def too_wide(text: str) -> list[str]:
    return [line for part in parts(text) if part.is_prose for line in part.lines if len(line) > COLUMNS]


def joined_lists(text: str) -> list[str]:
    """First items of lists without an empty line above: the site runs them into the paragraph there."""
    paragraphs = [part.lines for part in parts(text) if part.is_prose]
    items = [[line for line in lines if _ITEM.match(line)] for lines in paragraphs if not _BELOW_ITEM.match(lines[0])]
    return [found[0] for found in items if found]


def wrapped(text: str) -> str:
    lines: list[str] = []
    for part in parts(text):
        for item in _items(part.lines) if part.is_prose else [part.lines]:
            lines += _wrapped(item) if part.is_prose and max(map(len, item)) > COLUMNS else item
    return "\n".join(lines)


def _items(lines: list[str]) -> list[list[str]]:
    items: list[list[str]] = []
    for line in lines:
        if not items or _ITEM.match(line):
            items.append([])
        items[-1].append(line)
    return items


def _wrapped(item: list[str]) -> list[str]:
    found = _LEAD.match(item[0])
    lead = found.group() if found else ""
    body = " ".join([item[0][len(lead) :], *(line.strip() for line in item[1:])])
    whole = re.sub(r"`[^`]*`", lambda code: code.group().replace(" ", _KEPT), body)
    lines = textwrap.wrap(
        whole,
        COLUMNS,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines]
