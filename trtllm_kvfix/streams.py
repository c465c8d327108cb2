"""Standard output and standard error as a command needs them: open, and at a loss for no letter."""

import errno
import io
import os
import sys
from typing import TextIO

import click

# Python's own choices for standard output. Either ends a command at the first letter that the encoding lacks.
_STOPS_AT_A_LETTER = ("strict", "surrogateescape")


def prepare() -> None:
    """Before the first word. A closed stream takes everything and keeps nothing; a letter that the terminal's encoding
    lacks is shown as `?`."""
    for number, name in enumerate(("stdout", "stderr"), start=1):
        stream = getattr(sys, name)
        if stream is None:
            # Only here: a command that `run` becomes finds the stream closed, as it would without us. At its number,
            # because C++ writes there; the first that is free is standard input's if that is closed as well.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number, inheritable=False)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _STOPS_AT_A_LETTER:
            stream.reconfigure(errors="replace")


def refused(error: OSError) -> bool:
    """Whether a stream did not take what was written: a full disk, a quota, a limit of file sizes, a failed device. An
    error with a file's name is about that file."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def complain(text: str) -> None:
    """On standard error. Where that cannot be written either, the exit code has to do."""
    try:
        click.echo(text, err=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """It cannot be written: what is buffered goes nowhere, so that the interpreter's end does not try."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
