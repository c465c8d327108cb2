"""Races that are planted on purpose, each beside its repaired twin, by the driver's calls alone.

A case prepares its memory and gives back a `Round`: what the device is asked to do, the host's touch that comes too
early, and whether the outcome is right. The repaired twin waits for the stream before the touch; nothing else differs.
"""

import ctypes as c
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watch.gpu.driver import (
    DEVICE,
    HOST,
    ORDER_ANY,
    ORDER_STREAM,
    Address,
    Copy2d,
    Copy3d,
    Driver,
    Handle,
    Size,
)

BYTES = 1 << 16
AT = 20_000  # the byte that is raced for
OLD, NEW = 1, 7


@dataclass
class Round:
    enqueue: Callable[[], None]  # the use
    touch: Callable[[], Any]  # the host's
    right: Callable[[], bool]  # asked when the device is done
    begin: Callable[[], None] = lambda: None  # before the gate is closed


Case = Callable[[Driver], Round]
CASES: dict[str, Case] = {}
POSSIBLE = {"kernel_parameter", "kernel_struct", "kernel_extended", "kernel_extra"}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def to_device(cuda: Driver, host: Any, enqueue: Callable[[], None], touch: Callable[[], Any] | None = None) -> Round:
    """The device has to receive OLD; the host writes NEW meanwhile."""

    def begin() -> None:
        c.memset(host, OLD, len(host))

    def write() -> None:
        host[AT] = NEW

    return Round(enqueue, touch or write, lambda: cuda.read_device(AT) == OLD, begin)


def to_host(cuda: Driver, host: Any, enqueue: Callable[[], None]) -> Round:
    """The device sends NEW; the host reads too early."""
    cuda.fill_device(NEW)
    seen: list[int] = []

    def begin() -> None:
        c.memset(host, OLD, len(host))
        seen.clear()

    return Round(enqueue, lambda: seen.append(host[AT]), lambda: seen == [NEW], begin)


def upload(cuda: Driver, host: Any, bytes_: int = BYTES) -> Callable[[], None]:
    return lambda: cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(bytes_), cuda.stream)


@case
def copy_to_device(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return to_device(cuda, host, upload(cuda, host))


@case
def copy_to_host(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return to_host(cuda, host, lambda: cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(BYTES), cuda.stream))


@case
def copy_to_host_write(cuda: Driver) -> Round:
    """The host writes into what the device is about to write: one of the two is lost."""
    host = cuda.pinned(BYTES)
    cuda.fill_device(OLD)

    def write() -> None:
        host[AT] = NEW

    def enqueue() -> None:
        cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(BYTES), cuda.stream)

    return Round(enqueue, write, lambda: host[AT] == NEW)


@case
def generic_to_device(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    source = Address(c.addressof(host))
    return to_device(cuda, host, lambda: cuda("cuMemcpyAsync", cuda.device, source, Size(BYTES), cuda.stream))


@case
def generic_to_host(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    to = Address(c.addressof(host))
    return to_host(cuda, host, lambda: cuda("cuMemcpyAsync", to, cuda.device, Size(BYTES), cuda.stream))


@case
def device_to_device_call(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    source = Address(c.addressof(host))
    return to_device(cuda, host, lambda: cuda("cuMemcpyDtoDAsync_v2", cuda.device, source, Size(BYTES), cuda.stream))


@case
def thread_stream(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)

    def enqueue() -> None:
        cuda.gate.close(Handle(2))
        cuda("cuMemcpyHtoDAsync_v2_ptsz", cuda.device, host, Size(BYTES), None)

    return to_device(cuda, host, enqueue)


@case
def legacy_stream(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)

    def enqueue() -> None:
        cuda.gate.close(Handle(1))
        cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(BYTES), None)

    return to_device(cuda, host, enqueue)


def rows(cuda: Driver, host: Any, *, upwards: bool) -> Copy2d:
    """100 rows of 200 bytes, 320 apart; the byte AT is in one of them."""
    copy = Copy2d(width=200, height=100)
    for side, is_host in (("src", upwards), ("dst", not upwards)):
        setattr(copy, f"{side}_type", HOST if is_host else DEVICE)
        setattr(copy, f"{side}_pitch", 320)
        if is_host:
            setattr(copy, f"{side}_host", c.addressof(host))
        else:
            setattr(copy, f"{side}_device", cuda.device.value)
    return copy


@case
def copy_2d_to_device(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    copy = rows(cuda, host, upwards=True)
    return to_device(cuda, host, lambda: cuda("cuMemcpy2DAsync_v2", c.byref(copy), cuda.stream))


@case
def copy_2d_to_host(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    copy = rows(cuda, host, upwards=False)
    return to_host(cuda, host, lambda: cuda("cuMemcpy2DAsync_v2", c.byref(copy), cuda.stream))


def box(cuda: Driver, host: Any) -> Copy3d:
    copy = Copy3d(width=BYTES // 64, height=8, depth=8, src_type=HOST, dst_type=DEVICE)
    copy.src_host, copy.dst_device = c.addressof(host), cuda.device.value
    copy.src_pitch = copy.dst_pitch = BYTES // 64
    copy.src_height = copy.dst_height = 8
    return copy


@case
def copy_3d_to_device(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    copy = box(cuda, host)
    return to_device(cuda, host, lambda: cuda("cuMemcpy3DAsync_v2", c.byref(copy), cuda.stream))


def batch(order: int) -> Case:
    def make(cuda: Driver) -> Round:
        host = cuda.pinned(BYTES)
        half = BYTES // 2
        copies = [(cuda.device.value + at, c.addressof(host) + at, half) for at in (half, 0)]
        return to_device(cuda, host, lambda: cuda.batch(copies, order))

    return make


CASES["batch_in_stream_order"] = batch(ORDER_STREAM)
CASES["batch_in_any_order"] = batch(ORDER_ANY)


def memset(call: str, *arguments: Any) -> Case:
    def make(cuda: Driver) -> Round:
        host = cuda.pinned(BYTES)
        seen: list[int] = []

        def begin() -> None:
            c.memset(host, OLD, BYTES)
            seen.clear()

        def enqueue() -> None:
            cuda(call, Address(c.addressof(host)), *arguments, cuda.stream)

        return Round(enqueue, lambda: seen.append(host[AT]), lambda: seen == [NEW], begin)

    return make


CASES["memset_bytes"] = memset("cuMemsetD8Async", c.c_ubyte(NEW), Size(BYTES))
CASES["memset_words"] = memset("cuMemsetD32Async", c.c_uint(0x01010101 * NEW), Size(BYTES // 4))
CASES["memset_rows"] = memset("cuMemsetD2D8Async", Size(256), c.c_ubyte(NEW), Size(256), Size(BYTES // 256))


@case
def registered_memory(cuda: Driver) -> Round:
    room = mmap.mmap(-1, BYTES)
    host = (c.c_ubyte * BYTES).from_buffer(room)
    cuda("cuMemHostRegister_v2", host, Size(BYTES), 0)
    return to_device(cuda, host, upload(cuda, host))


@case
def registered_twice(cuda: Driver) -> Round:
    """Memory that was unregistered and registered again."""
    room = mmap.mmap(-1, BYTES)
    host = (c.c_ubyte * BYTES).from_buffer(room)
    cuda("cuMemHostRegister_v2", host, Size(BYTES), 0)
    cuda("cuMemHostUnregister", host)
    cuda("cuMemHostRegister_v2", host, Size(BYTES), 3)
    return to_device(cuda, host, upload(cuda, host))


@case
def neighbour_first(cuda: Driver) -> Round:
    """256 bytes in a page whose other bytes the host uses all the time."""
    host = cuda.pinned(BYTES)
    small = (c.c_ubyte * 256).from_buffer(host, AT)

    def enqueue() -> None:
        cuda("cuMemcpyHtoDAsync_v2", Address(cuda.device.value + AT), small, Size(256), cuda.stream)

    def touch() -> None:
        for offset in range(256, 300):
            host[AT + offset] = host[AT + offset - 600]
        host[AT] = NEW

    return to_device(cuda, host, enqueue, touch)


@case
def two_uses_of_one_page(cuda: Driver) -> Round:
    """Another stream's copy out of the same page has ended, this one has not."""
    host = cuda.pinned(BYTES)
    other = cuda.new_stream()
    page = AT // 4096 * 4096

    def enqueue() -> None:
        upload(cuda, host)()
        to, source = Address(cuda.device.value + page), Address(c.addressof(host) + page)
        cuda("cuMemcpyHtoDAsync_v2", to, source, Size(64), other)
        cuda.synchronize(other)

    return to_device(cuda, host, enqueue)


@case
def whole_range_by_memset(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return to_device(cuda, host, upload(cuda, host), lambda: c.memset(host, NEW, BYTES))


@case
def whole_range_by_memmove(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return to_device(cuda, host, upload(cuda, host), lambda: c.memmove(host, bytes([NEW]) * BYTES, BYTES))
