"""Python programs that are right, aimed at where hostrace could harm them: `python -m watch.harm.programs NAME`."""

import asyncio
import ctypes as c
import faulthandler
import mmap
import multiprocessing
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from watch.gpu.driver import ORDER_DURING_CALL, Driver, Size

PAGE = 4096
PROGRAMS: dict[str, Callable[[Driver], object]] = {}


def program(run: Callable[[Driver], object]) -> Callable[[Driver], object]:
    PROGRAMS[run.__name__] = run
    return run


class Small:
    """Two small buffers in one page, as PyTorch cuts its pinned memory; one of them is in flight."""

    def __init__(self, cuda: Driver) -> None:
        page = cuda.pinned(PAGE)
        self.cuda = cuda
        self.free, self.busy = (memoryview(page).cast("B")[at : at + 256] for at in (0, 512))
        self.address = c.addressof(page) + 512

    def begin(self) -> None:
        self.cuda.gate.close(self.cuda.stream)
        self.cuda("cuMemcpyDtoHAsync_v2", c.c_void_p(self.address), self.cuda.device, Size(256), self.cuda.stream)

    def end(self) -> None:
        self.cuda.gate.open()
        self.cuda.synchronize()


@program
def recv_into_while_another_copies(cuda: Driver) -> object:
    small = Small(cuda)
    ours, other = socket.socketpair()
    entered = threading.Event()
    got: list[Any] = []

    def receive() -> None:
        entered.set()
        while len(got) < 100:
            got.append(ours.recv_into(small.free, 4))

    reader = threading.Thread(target=receive)
    reader.start()
    entered.wait()
    small.begin()
    for _ in range(100):
        other.sendall(b"data")
        select.select([], [other], [])
    reader.join()
    small.end()
    return sum(got), bytes(small.free[:4])


@program
def readinto_of_files_and_pipes(cuda: Driver) -> object:
    small = Small(cuda)
    small.begin()
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(b"x" * 200)
        file.seek(0)
        read = [file.readinto(small.free)]
        read.append(os.pwrite(file.fileno(), small.free, 100))
        read.append(os.preadv(file.fileno(), [small.free[:100], small.free[100:]], 50))
    ends = os.pipe()
    read.append(os.write(ends[1], small.free[:64]))
    read.append(os.readv(ends[0], [small.free[64:]]))
    small.end()
    return read, bytes(small.free[:4])


@program
def a_worker_that_blocks_all_signals(cuda: Driver) -> object:
    small = Small(cuda)
    small.begin()
    seen: list[Any] = []

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        seen.append(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        small.free[3] = 7
        seen.append(small.free[3])

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    small.end()
    return seen


@program
def children_and_pipes(cuda: Driver) -> object:
    small = Small(cuda)
    small.begin()
    small.free[:3] = b"abc"
    warnings.simplefilter("ignore", DeprecationWarning)  # of threads: Python 3.12 names the process by its number
    child = os.fork()
    if child == 0:
        os._exit(small.free[0])
    status = os.waitpid(child, 0)[1]
    said = subprocess.run(["cat"], input=bytes(small.free[:3]), capture_output=True, check=True).stdout
    small.end()
    return os.waitstatus_to_exitcode(status), said


@program
def registered_memory_inside_an_array(cuda: Driver) -> object:
    room = mmap.mmap(-1, 4 * PAGE)
    memory = memoryview(room)
    address = c.addressof(c.c_char.from_buffer(room)) + 100
    cuda("cuMemHostRegister_v2", c.c_void_p(address), Size(2 * PAGE), 0)
    cuda.gate.close(cuda.stream)
    cuda("cuMemcpyDtoHAsync_v2", c.c_void_p(address), cuda.device, Size(2 * PAGE), cuda.stream)
    ours, other = socket.socketpair()
    other.sendall(b"data")
    got = ours.recv_into(memory[:50])
    cuda.gate.open()
    cuda.synchronize()
    return got, bytes(memory[:4]), memory[100]


@program
def an_event_loop(cuda: Driver) -> object:
    small = Small(cuda)

    async def talk() -> int:
        ours, other = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        total = 0
        for _ in range(20):
            small.begin()
            other.sendall(b"data")
            total += await loop.sock_recv_into(ours, small.free)
            await loop.run_in_executor(None, small.end)
        return total

    return asyncio.run(talk())


@program
def threads_that_fill_their_own_buffers(cuda: Driver) -> object:
    pages = [cuda.pinned(PAGE) for _ in range(4)]

    def fill(page: Any) -> int:
        for at in range(0, PAGE, 64):
            page[at] = at & 127
        return sum(page[::64])

    with ThreadPoolExecutor(4) as pool:
        sums = []
        for _ in range(20):
            for page in pages:
                cuda("cuMemcpyHtoDAsync_v2", cuda.device, page, Size(PAGE), cuda.stream)
            cuda.synchronize()
            sums.append(tuple(pool.map(fill, pages)))
    return sums[-1], len(set(sums))


def promise(cuda: Driver, address: int, bytes_: int) -> None:
    """The source is free when the call returns."""
    cuda.batch([(cuda.device.value or 0, address, bytes_)], ORDER_DURING_CALL)


@program
def sources_that_python_frees(cuda: Driver) -> object:
    lengths = []
    cuda.gate.close(cuda.stream)
    for size in range(100_000, 500_000, 20_000):
        source = bytearray(size)
        promise(cuda, c.addressof(c.c_char.from_buffer(source)), size)
        source = bytearray(b"x" * (size // 2))
        lengths.append(len(source.upper()))
    cuda.gate.open()
    cuda.synchronize()
    return lengths


@program
def a_file_in_memory_as_source(cuda: Driver) -> object:
    with tempfile.TemporaryFile() as file:
        file.write(b"weights" * 50_000)
        file.flush()
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as memory:
            promise(cuda, c.addressof(c.c_char.from_buffer(memory)), len(memory))
            memory[100_000:100_003] = b"new"
            cuda.synchronize()
            return memory[:7], memory[99_999:100_004]


@program
def a_pool_of_processes(cuda: Driver) -> object:
    small = Small(cuda)
    small.begin()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        lengths = pool.map(len, ["a", "bb", "ccc"])
    small.end()
    return lengths


@program
def a_data_base_beside_copies(cuda: Driver) -> object:
    small = Small(cuda)
    with sqlite3.connect(":memory:", check_same_thread=False) as base:
        base.execute("create table pages (number integer, bytes blob)")
        for number in range(20):
            small.begin()
            base.execute("insert into pages values (?, ?)", (number, small.free))
            small.end()
        return base.execute("select count(*), sum(length(bytes)) from pages").fetchall()


@program
def an_error_with_faulthandler(cuda: Driver) -> object:
    faulthandler.enable()
    small = Small(cuda)
    small.begin()
    small.free[0] = 1
    small.end()
    raise SystemExit(5)


if __name__ == "__main__":
    driver = Driver()
    result = PROGRAMS[sys.argv[1]](driver)
    driver.end()
    sys.stdout.write(f"{result}\n")
