"""Child processes take the steps. One that dies or hangs costs the step it was in; another child goes on after it.

python -m trtllm_kvfix.tools.selfcheck.children DESCRIPTOR STEP...

A child writes each step down before and after it: a crash names the step it came in.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trtllm_kvfix.hazards.ground import Ground, TorchGround
from trtllm_kvfix.overlay import import_hook
from trtllm_kvfix.tools.selfcheck import steps
from trtllm_kvfix.tools.selfcheck.steps import Outcome

CHILD = (sys.executable, "-m", "trtllm_kvfix.tools.selfcheck.children")
READ_BYTES = 65536


def run(
    names: Sequence[str],
    *,
    limit_s: float,
    child: Sequence[str] = CHILD,
    ended: Callable[[int], object] = lambda _: None,
) -> dict[str, Outcome]:
    """limit_s: how long a step may take. `ended` gets how many have ended."""
    outcomes: dict[str, Outcome] = {}
    while len(outcomes) < len(names):
        left = [name for name in names if name not in outcomes]
        begun, died = left[0], ""
        with _started([*child], left) as (process, lines):
            for line in lines(limit_s):
                if "begun" in line:
                    begun = line["begun"]
                else:
                    outcomes[line["ended"]] = Outcome(**line["outcome"])
                    ended(len(outcomes))
            died = _how(process, limit_s)
        if len(outcomes) < len(names) and begun not in outcomes:
            outcomes[begun] = Outcome("died", died)
    return outcomes


Lines = Callable[[float], Iterator[dict[str, Any]]]


@contextmanager
def _started(command: list[str], names: list[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Lines]]:
    """Start the child with upstream's output on stderr, so that the report has stdout to itself."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen([*command, str(writing), *names], stdout=sys.stderr.fileno(), pass_fds=[writing])
    finally:
        os.close(writing)
    try:
        yield process, lambda limit_s: _lines(reading, limit_s)
    finally:
        os.close(reading)
        process.kill()
        process.wait()


def _lines(descriptor: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Reads until the other end is closed, or nothing comes for too long."""
    pending = b""
    until = time.monotonic() + limit_s
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        got = os.read(descriptor, READ_BYTES)
        if not got:
            return
        *whole, pending = (pending + got).split(b"\n")
        for line in whole:
            yield json.loads(line)
            until = time.monotonic() + limit_s


def _how(process: "subprocess.Popen[bytes]", limit_s: float) -> str:
    """Says how a child that has stopped writing ended."""
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:g} s"
    return f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process exited with {code}"


def main(arguments: Sequence[str], ground: Callable[[], Ground] = TorchGround) -> None:
    import_hook.remove()  # the fixes of this process would be in the arms that are to be without
    descriptor, *names = arguments
    with os.fdopen(int(descriptor), "w", buffering=1) as report:
        for name in names:
            report.write(json.dumps({"begun": name}) + "\n")
            outcome = steps.take(name, ground)
            report.write(json.dumps({"ended": name, "outcome": outcome._asdict()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
