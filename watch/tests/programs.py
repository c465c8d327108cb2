"""Programs for the tests of hostrace that are no planted race: `python -m watch.tests.programs NAME`."""

import ctypes as c
import faulthandler
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from watch.gpu.driver import Address, Driver, Size
from watch.gpu.planted import AT, BYTES, NEW, upload
from watch.gpu.planted_touches import RawRead

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
def races_and_becomes_another(cuda: Driver) -> int:
    """The other, in the same process, has races of its own."""
    host = cuda.pinned(BYTES)
    for _ in range(4):
        cuda.library.fakeHold(cuda.stream)
        upload(cuda, host)()
        host[AT] = NEW
        finish(cuda)
    os.execv(sys.executable, [sys.executable, "-m", "watch.tests.programs", "races_and_fails"])


@program
def races_and_becomes_one_that_is_not_watched(cuda: Driver) -> int:
    in_flight(cuda)[AT] = NEW
    finish(cuda)
    os.execve(sys.executable, [sys.executable, "-c", ""], {})


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


PAGE = 4096
READ, POLL = RawRead.NUMBER, 7  # on x86-64
Call = Callable[..., int]  # by number, then its arguments


class PollFile(c.Structure):
    _fields_ = [("file", c.c_int), ("events", c.c_short), ("happened", c.c_short)]


def until_it_waits(thread: int, number: int) -> None:
    """Until the thread is in that call into the kernel, and stays there."""
    call = Path(f"/proc/self/task/{thread}/syscall")
    while call.read_text().split()[0] != str(number):
        os.sched_yield()


def races_beside_a_call(cuda: Driver, call: Call, number: int, *, into_pinned: bool = False) -> int:
    """The device reads all but the first page. A byte of it is written while another thread waits in `call`.

    The call reads into the first page. Or it is about other memory, and where it takes no argument stands the byte's
    address.
    """
    host = cuda.pinned(BYTES)
    own = c.create_string_buffer(1)
    ours, theirs = os.pipe()
    threads: queue.Queue[int] = queue.Queue()
    place = c.addressof(host if into_pinned else own)
    unused = 0 if into_pinned else c.addressof(host) + AT
    waits = PollFile(ours, select.POLLIN, 0)
    arguments = (ours, place, 1, unused) if number == READ else (c.addressof(waits), 1, -1, unused)

    def wait() -> None:
        threads.put(threading.get_native_id())
        call(*map(c.c_long, (number, *arguments)))

    waiter = threading.Thread(target=wait)
    waiter.start()
    until_it_waits(threads.get(), number)
    cuda.library.fakeHold(cuda.stream)
    source = Address(c.addressof(host) + PAGE)
    cuda("cuMemcpyHtoDAsync_v2", cuda.device, source, Size(BYTES - PAGE), cuda.stream)
    host[AT] = NEW
    os.write(theirs, b"x")
    waiter.join()
    finish(cuda)
    return 0 if (c.string_at(place, 1) if number == READ else os.read(ours, 1)) == b"x" else 9


def past_the_c_library() -> Call:
    made = RawRead()
    call = c.CFUNCTYPE(*[c.c_long] * 6)(c.addressof(made.code))
    return lambda *arguments, _made=made: int(call(*arguments))


def poll(_number: c.c_long, *arguments: c.c_long) -> int:
    return int(c.CDLL(None).poll(*arguments))


BY_NUMBER, RAW = c.CDLL(None).syscall, past_the_c_library()
BESIDE_A_CALL: dict[str, Callable[[Driver], int]] = {
    "read_by_number_into_pinned": partial(races_beside_a_call, call=BY_NUMBER, number=READ, into_pinned=True),
    "read_by_number": partial(races_beside_a_call, call=BY_NUMBER, number=READ),
    "raw_read_into_pinned": partial(races_beside_a_call, call=RAW, number=READ, into_pinned=True),
    "raw_read": partial(races_beside_a_call, call=RAW, number=READ),
    "poll": partial(races_beside_a_call, call=poll, number=POLL),
    "poll_by_number": partial(races_beside_a_call, call=BY_NUMBER, number=POLL),
    "raw_poll": partial(races_beside_a_call, call=RAW, number=POLL),
}
PROGRAMS |= BESIDE_A_CALL


if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](Driver()))
