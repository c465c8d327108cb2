"""Standard output and standard error as a command needs them: open, and at a loss for no letter."""

import io
import os
import sys
from pathlib import Path

# Python's own choices for standard output. Either ends a command at the first letter that the encoding lacks.
_STOPS_AT_A_LETTER = ("strict", "surrogateescape")


def prepare() -> None:
    """Before the first word. A closed stream takes everything and keeps nothing; a letter that the terminal's encoding
    lacks is shown as `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Only here: a command that `run` becomes finds the stream closed, as it would without us.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  for as long as we run
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _STOPS_AT_A_LETTER:
            stream.reconfigure(errors="replace")


def give_up_output() -> None:
    """Standard output cannot be written: what is buffered goes nowhere, so that the interpreter's end does not try."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
