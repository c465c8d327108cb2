"""Run a command that compiles, such as `pip install -v`, and show how far ninja is: one line on a terminal, else a line
now and then. What the command prints is kept, and shown where it fails.

    tools/build_progress.py TITLE -- COMMAND...
"""

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator

STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]")
LINES_KEPT = 400
LINES_ON_PIPES = 10  # where each line stays, such as in a log


def steps(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    for line in lines:
        found = STEP.match(line)
        if found:
            yield int(found[1]), int(found[2])


def shown(title: str, done: int, total: int, last: int, *, is_terminal: bool) -> str | None:
    """The line to print, if any; `last` is the step that was printed last."""
    if is_terminal:
        return f"\r{title}: {done} of {total} "
    part = total / LINES_ON_PIPES
    return f"{title}: {done} of {total}\n" if done == total or int(done / part) > int(last / part) else None


def main() -> int:
    title, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit(__doc__)
    is_terminal, last, kept = sys.stdout.isatty(), 0, deque[str](maxlen=LINES_KEPT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None

        def lines() -> Iterator[str]:
            for line in process.stdout or ():
                kept.append(line)
                yield line

        for done, total in steps(lines()):
            text = shown(title, done, total, last, is_terminal=is_terminal)
            if text is not None:
                print(text, end="", flush=True)
                last = done
    if is_terminal and last:
        print()
    if process.returncode:
        print("".join(kept), end="", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
