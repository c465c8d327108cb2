"""Programs for the tests of hostrace that are no planted race: `python -m watch.tests.programs NAME`."""

import ctypes as c
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from watch.gpu.driver import Driver, Size
from watch.gpu.planted import AT, BYTES, NEW, upload

PROGRAMS: dict[str, Callable[[Driver], int]] = {}


def program(run: Callable[[Driver], int]) -> Callable[[Driver], int]:
    PROGRAMS[run.__name__] = run
    return run


def in_flight(cuda: Driver) -> Any:
    """A buffer that the device reads until the stream is opened."""
    host = cuda.pinned(BYTES)
    cuda.library.fakeHold(cuda.stream)
    upload(cuda, host)()
    return host


def finish(cuda: Driver) -> None:
    cuda.library.fakeOpen(cuda.stream)
    cuda.synchronize()


@program
def races_and_is_killed(cuda: Driver) -> int:
    in_flight(cuda)[AT] = NEW
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@program
def races_and_fails(cuda: Driver) -> int:
    in_flight(cuda)[AT] = NEW
    finish(cuda)
    return 3


@program
def fails(cuda: Driver) -> int:
    finish_after = in_flight(cuda)
    finish(cuda)
    finish_after[AT] = NEW
    return 3


@program
def forks(cuda: Driver) -> int:
    """The child has pages of its own: it may touch them, and says nothing."""
    host = in_flight(cuda)
    child = os.fork()
    if child == 0:
        host[AT] = NEW
        os._exit(host[AT])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finish(cuda)
    return 0 if status == NEW and host[AT] == 0 else 9


@program
def faulthandler_and_a_race(cuda: Driver) -> int:
    faulthandler.enable()
    in_flight(cuda)[AT] = NEW
    finish(cuda)
    return 0


@program
def faulthandler_and_a_crash(cuda: Driver) -> int:
    """A fault that is the program's own, while memory is guarded."""
    faulthandler.enable()
    in_flight(cuda)
    c.string_at(8)
    return 0


@program
def own_handler(cuda: Driver) -> int:
    """A signal that somebody sends is the program's."""
    seen: list[int] = []
    signal.signal(signal.SIGSEGV, lambda number, _: seen.append(number))
    host = in_flight(cuda)
    os.kill(os.getpid(), signal.SIGSEGV)
    host[AT] = NEW
    finish(cuda)
    return 0 if seen == [signal.SIGSEGV] else 9


@program
def captures(cuda: Driver) -> int:
    """On a stream that is captured nothing of ours may be enqueued: the made-up driver refuses it."""
    host = cuda.pinned(BYTES)
    cuda.library.fakeCapture(cuda.stream, 1)
    upload(cuda, host)()
    host[AT] = NEW
    cuda.library.fakeCapture(cuda.stream, 0)
    return int(cuda.library.fakeFailed())


@program
def waits_for_the_host(cuda: Driver) -> int:
    """The device goes on when the host has written: a hold can only give up."""
    host = in_flight(cuda)
    host[AT] = NEW
    finish(cuda)
    return 0 if host[AT] == NEW else 9


@program
def polls_a_flag(cuda: Driver) -> int:
    """A small buffer that is in use beside one that is not."""
    host = cuda.pinned(BYTES)
    cuda.library.fakeHold(cuda.stream)
    cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(256), cuda.stream)
    for at in range(256, 400):
        host[at] = host[at + 1] + 1
    finish(cuda)
    return 0


if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](Driver()))
