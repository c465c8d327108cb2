"""Races on a device that is idle: `python -m watch.gpu.idle RESULTS.csv`; with the name of a program, that one alone.

A row is a program with so many rounds. The racy ones touch right behind the call, when a small copy may be over
already: hostrace has to report each round. Where the driver promised to have read a pageable source, the touch is the
program's right, and has to be listed as possible. The clean ones wait as their names say, and have to be silent.
"""

import argparse
import ctypes as c
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from watch.gpu.driver import ORDER_ANY, ORDER_DURING_CALL, ORDER_STREAM, Driver, Handle, Size
from watch.gpu.rows import Run, occurrences
from watch.gpu.table import table

ROUNDS = 300
CAUGHT_AT_LEAST = 299
SIZES = (4, 4096, 1 << 16, 1 << 18, 1 << 20)
WAITED_SIZE = 1 << 15
PAGEABLE_SIZE = 1 << 18


@dataclass
class Row:
    program: str
    racy: bool
    rounds: int
    wrong_plain: int
    wrong_watched: int
    races: int
    unordered: int
    possible: int
    status: int
    ok: bool


def new_event(cuda: Driver) -> Handle:
    event = Handle()
    cuda("cuEventCreate", c.byref(event), 2)
    return event


def by_nothing(_cuda: Driver, _other: Handle) -> None:
    return


def by_event_of_the_wrong_stream(cuda: Driver, other: Handle) -> None:
    event = new_event(cuda)
    cuda("cuEventRecord", event, other)
    cuda("cuEventSynchronize", event)
    cuda("cuEventDestroy_v2", event)


def by_event(cuda: Driver, _other: Handle) -> None:
    by_event_of_the_wrong_stream(cuda, cuda.stream)


def by_stream(cuda: Driver, _other: Handle) -> None:
    cuda.synchronize()


def by_context(cuda: Driver, _other: Handle) -> None:
    cuda("cuCtxSynchronize")


def by_another_stream(cuda: Driver, other: Handle) -> None:
    event = new_event(cuda)
    cuda("cuEventRecord", event, cuda.stream)
    cuda("cuStreamWaitEvent", other, event, 0)
    cuda("cuEventDestroy_v2", event)
    cuda.synchronize(other)


ORDERS = {
    "pageable_in_stream_order": ORDER_STREAM,
    "pageable_in_any_order": ORDER_ANY,
    "pageable_by_promise": ORDER_DURING_CALL,
}
RACY = (by_nothing, by_event_of_the_wrong_stream)
CLEAN = (by_event, by_stream, by_context, by_another_stream)
Wait = Callable[[Driver, Handle], None]
PROGRAMS: dict[str, tuple[str, int, Wait]] = {
    f"{way}_{size}_{wait.__name__}": (way, size, wait)
    for way in ("d2h", "h2d")
    for size, waits in [*((size, (by_nothing,)) for size in SIZES), (WAITED_SIZE, (*RACY, *CLEAN))]
    for wait in waits
}
PINNED = {"d2h": Driver.pinned, "h2d": Driver.pinned, "mapped": Driver.mapped, "pooled": Driver.pooled}
PROGRAMS |= {
    f"{way}_{WAITED_SIZE}_{wait.__name__}": (way, WAITED_SIZE, wait)
    for way in ("mapped", "pooled")
    for wait in (by_nothing, by_stream)
}
PROGRAMS |= {
    f"{way}_{PAGEABLE_SIZE}_{wait.__name__}": (way, PAGEABLE_SIZE, wait)
    for way in ORDERS
    for wait in (by_nothing, by_stream)
}


def send(cuda: Driver, way: str, host: Any) -> None:
    if way in ORDERS:
        cuda.batch([(cuda.device.value or 0, c.addressof(host), len(host))], ORDERS[way])
    else:
        cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(len(host)), cuda.stream)


def run(name: str) -> int:
    """How many rounds had the wrong bytes."""
    way, bytes_, wait = PROGRAMS[name]
    cuda = Driver()
    host: Any = (c.c_ubyte * bytes_)() if way in ORDERS else PINNED[way](cuda, bytes_)
    other, wrong = cuda.new_stream(), 0
    for number in range(ROUNDS):
        value = number % 200 + 1
        if way == "d2h":
            cuda.fill_device(value)
            cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(bytes_), cuda.stream)
            wait(cuda, other)
            wrong += host[bytes_ - 1] != value
            cuda.synchronize()
        else:
            host[bytes_ - 1] = value
            send(cuda, way, host)
            wait(cuda, other)
            host[bytes_ - 1] = 0
            cuda.synchronize()
            wrong += cuda.read_device(bytes_ - 1) != value
    cuda.end()
    return wrong


def row(name: str) -> Row:
    command = [sys.executable, "-m", "watch.gpu.idle", name]
    plain, _ = Run(command, "plain").outcome()
    seen, report = Run(command, "report").outcome()
    wrong_plain, wrong_watched = (int(done.stdout) if done.stdout.strip().isdigit() else -1 for done in (plain, seen))
    races, unordered, possible = (occurrences(report, grade) for grade in ("races", "unordered", "possible"))
    racy, status = PROGRAMS[name][2] in RACY, seen.returncode
    found, expected = (possible, 0) if name.startswith("pageable_by_promise") else (races + unordered, 1)
    caught = found >= CAUGHT_AT_LEAST and status == expected
    silent = races == unordered == possible == status == wrong_plain == wrong_watched == 0
    ok = caught if racy else silent
    return Row(name, racy, ROUNDS, wrong_plain, wrong_watched, races, unordered, possible, status, ok)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", help="a file for the rows, or a program")
    given = parser.parse_args()
    if given.what in PROGRAMS:
        print(run(given.what))
        return 0
    bad = 0
    with table(Path(given.what), [field.name for field in fields(Row)]) as add:
        for name in PROGRAMS:
            made = row(name)
            add(astuple(made))
            print(*astuple(made), flush=True)
            bad += not made.ok
    print(f"{bad} of {len(PROGRAMS)} rows are not as they have to be")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
