"""The terminal that reports are printed to."""

import textwrap

from rich.console import Console

# The width that the tables need. In less, rich would cut names, figures and verdicts off, or leave out whole columns.
COLUMNS_MIN = 80


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """rich would end the process with 1, which means a hazard; cli.py knows better."""
        raise  # noqa: PLE0704  rich calls this while it handles the BrokenPipeError


def terminal(*, quiet: bool = False) -> Console:
    """Standard output. A terminal that is narrower than the tables wraps their lines by itself, and nothing is lost.

    Brackets in what is shown are no markup: an error names `[/dev/shm]`, and rich would end at it.
    """
    console = _Terminal(quiet=quiet, markup=False)
    console.width = max(console.width, COLUMNS_MIN)
    return console


def wrapped(text: str, indent: int = 0, hanging: int = 2) -> list[str]:
    """Lines for every terminal and for a pipe. A word that is longer, such as a path, stays whole."""
    return textwrap.wrap(
        text,
        COLUMNS_MIN,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
