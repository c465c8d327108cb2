"""`hostrace diff BEFORE AFTER`: two reports of `--json`, of a program before and after a change, race by race."""

import json
import operator
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click

from hostrace.errors import HostraceError
from hostrace.races import Race
from hostrace.report import COMPARED, FORMAT, number_of

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXIT_PIPE_GONE = 141  # as shells say of a program that a signal has ended
Identity = tuple[str, ...]
HOW = {"": "an instruction", COMPARED: "somebody"}


@dataclass
class Side:
    """One of the two reports."""

    name: str
    races: Counter[Identity]
    uses: int
    processes: int

    def __str__(self) -> str:
        times, uses = number_of(self.races.total(), "race"), number_of(self.uses, "use")
        return f"{self.name}: {times} in {uses} watched in {number_of(self.processes, 'process', 'processes')}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.pass_context
def diff(ctx: click.Context, before: Path, after: Path) -> None:
    """Count each race in two reports of --json, before and after a change.

    Races are the same if the same functions touched and enqueued; lines may have moved. The exit code is 0 if every
    race of BEFORE is gone and none is new, 1 if not, and 2 if the reports prove nothing: no race in BEFORE, or nothing
    watched in AFTER.
    """
    sides = side("before", before), side("after", after)
    show("\n".join(lines(*sides)))
    ctx.exit(verdict(*sides))


def show(text: str) -> None:
    """A 1 is about races, so what standard output does not take has exit codes of its own. Letters that it lacks are
    written by their numbers."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError as error:
        send_to_nowhere(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(EXIT_PIPE_GONE) from error
        raise HostraceError(f"standard output cannot be written: {error.strerror}") from error


def send_to_nowhere(stream: TextIO) -> None:
    """Once it has failed: Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def verdict(before: Side, after: Side) -> int:
    if after.races:
        return 1
    return 0 if before.races and after.uses else 2


def lines(before: Side, after: Side) -> Iterator[str]:
    for race in sorted({*before.races, *after.races}, key=lambda race: (-before.races[race], race)):
        counts = before.races[race], after.races[race]
        word = "gone" if not counts[1] else "new" if not counts[0] else "still"
        touch, how, use, device, touched, enqueued = race
        yield f"{word:5} {counts[0]:,} -> {counts[1]:,}  {touch} by {HOW.get(how, how)} of what a {use} {device}"
        yield f"      touched in {touched}, enqueued in {enqueued}"
    yield str(before)
    yield str(after)
    if verdict(before, after) == 2:
        cause = "nothing was watched after the change" if before.races else "there was no race before it"
        yield f"This says nothing about the change: {cause}."


def side(name: str, file: Path) -> Side:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if report["format"] != FORMAT:
            raise HostraceError(f"{file} is a report of format {report['format']}, and this hostrace reads {FORMAT}")
        races = Counter[Identity]()
        for race in map(Race.of, report["races"] + report["unordered"]):
            races[race.identity] += race.times
        uses, processes = (operator.index(each) for each in (report["numbers"]["guarded"], report["processes"]))
        return Side(name, races, uses, processes)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise HostraceError(f"{file} is no report of hostrace --json: {error}") from error
