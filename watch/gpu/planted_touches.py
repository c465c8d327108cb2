"""Planted races by their touch: other threads, calls by which the kernel touches memory; and by uses of kernels."""

import ctypes as c
import io
import mmap
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from watch.gpu.driver import Address, Driver, Handle, LaunchConfig, Size, Struct
from watch.gpu.planted import AT, BYTES, CASES, NEW, OLD, Round, case, to_device, upload


@case
def other_thread(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)

    def write() -> None:
        host[AT] = NEW

    def touch() -> None:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    return to_device(cuda, host, upload(cuda, host), touch)


@case
def many_threads(cuda: Driver) -> Round:
    """Eight threads at once, each in a page of its own and in the one that all share."""
    host = cuda.pinned(BYTES)

    def write(number: int) -> None:
        host[number * 4096 + 5] = NEW
        host[AT] = NEW

    def touch() -> None:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return to_device(cuda, host, upload(cuda, host), touch)


def by_kernel(name: str, read: Callable[[int, Any], int]) -> None:
    """The kernel writes the memory, on behalf of a call of the C library."""

    def make(cuda: Driver) -> Round:
        host = cuda.pinned(BYTES)
        file = os.memfd_create("bytes")
        os.write(file, bytes([NEW]) * BYTES)
        view = memoryview(host).cast("B")

        def touch() -> None:
            os.lseek(file, 0, os.SEEK_SET)
            if read(file, view) != BYTES:
                raise RuntimeError("the call brought less than it should")

        return to_device(cuda, host, upload(cuda, host), touch)

    CASES[name] = make


class RawRead:
    """The call into the kernel by which it reads a file, made past the C library, on x86-64."""

    NUMBER = 0

    def __init__(self) -> None:
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(bytes.fromhex("4889f8 4889f7 4889d6 4889ca 0f05 c3"))  # the arguments one place on, and the call
        self.code = c.c_char.from_buffer(memory)  # which keeps the memory
        self.call = c.CFUNCTYPE(c.c_long, c.c_long, c.c_long, c.c_void_p, c.c_long)(c.addressof(self.code))

    def __call__(self, file: int, view: memoryview) -> int:
        return int(self.call(self.NUMBER, file, c.addressof(c.c_char.from_buffer(view)), len(view)))


def read_by_number(file: int, view: memoryview) -> int:
    """The same by the C library's function for calls by number."""
    room = c.c_void_p(c.addressof(c.c_char.from_buffer(view)))
    return int(c.CDLL(None).syscall(RawRead.NUMBER, file, room, c.c_size_t(len(view))))


by_kernel("by_raw_call", RawRead())
by_kernel("by_number", read_by_number)
by_kernel("by_readv", lambda file, view: os.readv(file, [view[: BYTES // 2], view[BYTES // 2 :]]))
by_kernel("by_preadv", lambda file, view: os.preadv(file, [view], 0))
by_kernel("by_read", lambda file, view: io.FileIO(file, closefd=False).readinto(view) or 0)


@case
def by_recv(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    ours, theirs = socket.socketpair()
    view = memoryview(host).cast("B")

    def touch() -> None:
        theirs.send(bytes([NEW]) * 64)
        ours.recv_into(view[AT : AT + 64])

    return to_device(cuda, host, upload(cuda, host), touch)


@case
def by_write(cuda: Driver) -> Round:
    """The kernel reads what the device has not written yet."""
    host = cuda.pinned(BYTES)
    cuda.fill_device(NEW)
    seen: list[bytes] = []
    view = memoryview(host).cast("B")

    def begin() -> None:
        c.memset(host, OLD, BYTES)
        seen.clear()

    def touch() -> None:
        file = os.memfd_create("bytes")
        os.write(file, view)
        seen.append(os.pread(file, 1, AT))
        os.close(file)

    def enqueue() -> None:
        cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(BYTES), cuda.stream)

    return Round(enqueue, touch, lambda: seen == [bytes([NEW])], begin)


def launch(name: str, function_name: str, how: str) -> None:
    def make(cuda: Driver) -> Round:
        host = cuda.pinned(BYTES)
        function = cuda.function(function_name)
        to, source = Address(cuda.device.value + AT), Address(c.addressof(host) + AT)
        given = Struct(0, to, source, 0)
        params = (Handle * 2)(c.addressof(to), c.addressof(source))
        if function_name == "copy_byte_of_struct":
            params = (Handle * 2)(c.addressof(given), None)
        buffer = (Address * 2)(to.value, source.value)
        size = Size(16)
        extra = (Handle * 5)(1, c.addressof(buffer), 2, c.addressof(size), None)
        config = LaunchConfig((1, 1, 1), (1, 1, 1), 0, cuda.stream)
        ones = [c.c_uint(1)] * 6
        kept = (to, source, given, buffer, size)  # `params` and `extra` hold their addresses alone

        def enqueue(_kept: object = kept) -> None:
            if how == "extended":
                cuda("cuLaunchKernelEx", c.byref(config), function, params, None)
            elif how == "extra":
                cuda("cuLaunchKernel", function, *ones, c.c_uint(0), cuda.stream, None, extra)
            else:
                cuda("cuLaunchKernel", function, *ones, c.c_uint(0), cuda.stream, params, None)

        return to_device(cuda, host, enqueue)

    CASES[name] = make


launch("kernel_parameter", "copy_byte", "plain")
launch("kernel_struct", "copy_byte_of_struct", "plain")
launch("kernel_extended", "copy_byte", "extended")
launch("kernel_extra", "copy_byte", "extra")
