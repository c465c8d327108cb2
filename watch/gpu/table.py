"""Rows about a run on a GPU: the day and the device first, one written as soon as it is known."""

import csv
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Protocol

WHERE = ("date", "device")


class Rows(Protocol):
    def __call__(self, row: Iterable[object]) -> None: ...


@cache
def where() -> tuple[str, str]:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        device = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        device = "made up"
    return datetime.now(timezone.utc).date().isoformat(), device


@contextmanager
def table(file: Path, columns: Sequence[str]) -> Iterator[Rows]:
    """Writes each row at the end of the file, which begins with its columns."""
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        if new:
            writer.writerow((*WHERE, *columns))

        def add(row: Iterable[object]) -> None:
            writer.writerow((*where(), *row))
            out.flush()

        yield add
