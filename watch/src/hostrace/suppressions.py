"""Races that are known: a file with a pattern in each line, matched against the frames of both stacks."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from hostrace.errors import HostraceError
from hostrace.races import Race

SIDES = ("use", "touch")


class Suppression(NamedTuple):
    side: str | None  # None is either
    pattern: str

    def matches(self, race: Race) -> bool:
        stacks = {"use": race.use_stack, "touch": race.touch_stack}
        chosen = [stacks[self.side]] if self.side else list(stacks.values())
        frames = [frame for stack in chosen for frame in (*stack.python, *stack.native)]
        return any(fnmatchcase(str(frame), self.pattern) for frame in frames)


def load(file: Path) -> list[Suppression]:
    """`use:PATTERN`, `touch:PATTERN` or `PATTERN`; `#` begins a comment."""
    try:
        text_of_all = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise HostraceError(f"{file} cannot be read: {error}; expected a text with a pattern in each line") from error
    found = []
    for number, line in enumerate(text_of_all.splitlines(), 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        side, colon, pattern = text.partition(":")
        if colon and side in SIDES:
            text = pattern.strip()
        if not text.strip("*"):
            raise HostraceError(f"{file}, line {number}: {line.strip()!r} would suppress everything")
        found.append(Suppression(side if colon and side in SIDES else None, text))
    return found


def split(races: Iterable[Race], suppressions: Iterable[Suppression]) -> tuple[list[Race], list[Race]]:
    """The races to report, and those that a suppression matches."""
    known = list(suppressions)
    kept: list[Race] = []
    suppressed: list[Race] = []
    for race in races:
        (suppressed if any(each.matches(race) for each in known) else kept).append(race)
    return kept, suppressed
