"""Programs that are decided by order, not by luck: `python -m watch.tests.orders NAME`.

Each uses the device, lets it come to its end unobserved, and touches; the racy ones are ordered by nothing.
"""

import ctypes as c
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from watch.gpu.driver import (
    GRANULE,
    ORDER_ANY,
    ORDER_DURING_CALL,
    ORDER_STREAM,
    PLACE_DEVICE,
    Address,
    Driver,
    Handle,
    Size,
)
from watch.gpu.gate import WITHIN_S
from watch.gpu.planted_graphs import captured, executable

ROUNDS = 20
MAP_HUGETLB = 0x40000
SIZES = (4, 4096, 1 << 16)
RACY: dict[str, Callable[[Driver], None]] = {}
CLEAN: dict[str, Callable[[Driver], None]] = {}
MAYBE: dict[str, Callable[[Driver], None]] = {}
Program = Callable[[Driver], None]
Function = c.CFUNCTYPE(None, c.c_void_p)
kept: list[Any] = []  # what the device calls


def into(programs: dict[str, Program]) -> Callable[[Program], Program]:
    def add(run: Program) -> Program:
        programs[run.__name__] = run
        return run

    return add


def idle(cuda: Driver, stream: Handle | None = None) -> None:
    """The device has come to its end, and nobody asked: the made-up driver's own way to know."""
    cuda.library.fakeIdle(stream or cuda.stream)


def fetch(cuda: Driver, host: Any, stream: Handle | None = None) -> None:
    cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(len(host)), stream or cuda.stream)


def send(cuda: Driver, host: Any, stream: Handle | None = None) -> None:
    cuda("cuMemcpyHtoDAsync_v2", cuda.device, host, Size(len(host)), stream or cuda.stream)


def new_event(cuda: Driver) -> Handle:
    event = Handle()
    cuda("cuEventCreate", c.byref(event), 2)
    return event


def legacy(cuda: Driver) -> Handle:
    del cuda
    return Handle(1)


def blocking(cuda: Driver) -> Handle:
    stream = Handle()
    cuda("cuStreamCreate", c.byref(stream), 0)
    return stream


Memory = Callable[[Driver, int], Any]


def rounds(cuda: Driver, once: Callable[[Any], None], bytes_: int = 4096, memory: Memory = Driver.pinned) -> None:
    host = memory(cuda, bytes_)
    for _ in range(ROUNDS):
        once(host)
        cuda.synchronize()


def idle_read(bytes_: int, memory: Memory = Driver.pinned) -> Program:
    def once(cuda: Driver, host: Any) -> None:
        fetch(cuda, host)
        idle(cuda)
        bytes(host[:1])

    return lambda cuda: rounds(cuda, lambda host: once(cuda, host), bytes_, memory)


def idle_write(bytes_: int, memory: Memory = Driver.pinned) -> Program:
    def once(cuda: Driver, host: Any) -> None:
        send(cuda, host)
        idle(cuda)
        host[len(host) - 1] = 1

    return lambda cuda: rounds(cuda, lambda host: once(cuda, host), bytes_, memory)


for size in SIZES:
    RACY[f"read_{size}_behind_an_idle_stream"] = idle_read(size)
    RACY[f"write_{size}_behind_an_idle_stream"] = idle_write(size)
for memory in (Driver.mapped, Driver.pooled):
    RACY[f"read_of_{memory.__name__}_host_memory"] = idle_read(4096, memory)
    RACY[f"write_of_{memory.__name__}_host_memory"] = idle_write(4096, memory)


def waited(wait: Callable[[Driver, Any], None]) -> Program:
    """The host reads what a copy brought, behind `wait`."""

    def once(cuda: Driver, host: Any) -> None:
        fetch(cuda, host)
        idle(cuda)
        wait(cuda, host)
        bytes(host[:1])

    return lambda cuda: rounds(cuda, lambda host: once(cuda, host))


def ordered(programs: dict[str, Program]) -> Callable[[Callable[[Driver, Any], None]], None]:
    def add(wait: Callable[[Driver, Any], None]) -> None:
        programs[wait.__name__] = waited(wait)

    return add


@ordered(RACY)
def event_on_the_wrong_stream(cuda: Driver, _: Any) -> None:
    event, other = new_event(cuda), cuda.new_stream()
    cuda("cuEventRecord", event, other)
    cuda("cuEventSynchronize", event)


@ordered(RACY)
def event_of_the_round_before(cuda: Driver, host: Any) -> None:
    event = new_event(cuda)
    cuda("cuEventRecord", event, cuda.stream)
    fetch(cuda, host)
    idle(cuda)
    cuda("cuEventSynchronize", event)


@ordered(RACY)
def event_that_was_never_recorded(cuda: Driver, _: Any) -> None:
    """As in the first rounds of a loop that waits for each buffer's last event."""
    cuda("cuEventSynchronize", new_event(cuda))


@ordered(RACY)
def another_stream_is_waited_for(cuda: Driver, _: Any) -> None:
    cuda.synchronize(cuda.new_stream())


@ordered(RACY)
def legacy_stream_beside_one_that_does_not_block(cuda: Driver, _: Any) -> None:
    cuda.synchronize(legacy(cuda))


@ordered(RACY)
def query_that_says_not_yet(cuda: Driver, _: Any) -> None:
    cuda.library.fakeHold(cuda.stream)
    if cuda.library.cuStreamQuery(cuda.stream) != 600:
        raise RuntimeError("a stream that is held is over")
    cuda.library.fakeOpen(cuda.stream)
    idle(cuda)


@ordered(CLEAN)
def stream_is_waited_for(cuda: Driver, _: Any) -> None:
    cuda.synchronize()


@ordered(CLEAN)
def event_is_waited_for(cuda: Driver, _: Any) -> None:
    event = new_event(cuda)
    cuda("cuEventRecord", event, cuda.stream)
    cuda("cuEventSynchronize", event)


@ordered(CLEAN)
def event_is_asked_for(cuda: Driver, _: Any) -> None:
    event = new_event(cuda)
    cuda("cuEventRecord", event, cuda.stream)
    idle(cuda)
    cuda("cuEventQuery", event)


@ordered(CLEAN)
def stream_is_asked_for(cuda: Driver, _: Any) -> None:
    cuda("cuStreamQuery", cuda.stream)


@ordered(CLEAN)
def context_is_waited_for(cuda: Driver, _: Any) -> None:
    cuda("cuCtxSynchronize")


@ordered(CLEAN)
def memory_is_freed(cuda: Driver, _: Any) -> None:
    cuda("cuMemFreeHost", cuda.pinned(4096))


@ordered(CLEAN)
def another_stream_waits_for_the_event(cuda: Driver, _: Any) -> None:
    event, other = new_event(cuda), cuda.new_stream()
    cuda("cuEventRecord", event, cuda.stream)
    cuda("cuStreamWaitEvent", other, event, 0)
    cuda("cuEventDestroy_v2", event)
    cuda.synchronize(other)


@ordered(CLEAN)
def another_thread_waits(cuda: Driver, _: Any) -> None:
    def wait() -> None:
        cuda("cuCtxSetCurrent", cuda.context)
        cuda.synchronize()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()


@ordered(CLEAN)
def host_function_behind_it(cuda: Driver, _: Any) -> None:
    called = threading.Event()
    kept.append(Function(lambda _: called.set()))
    cuda("cuLaunchHostFunc", cuda.stream, kept[-1], None)
    called.wait()


@ordered(CLEAN)
def copy_to_pageable_memory(cuda: Driver, _: Any) -> None:
    fetch(cuda, c.create_string_buffer(16))


@ordered(MAYBE)
def a_value_that_the_stream_writes(cuda: Driver, _: Any) -> None:
    cuda("cuStreamWriteValue32_v2", cuda.stream, cuda.gate.device, c.c_uint32(0), 0)
    idle(cuda)


@ordered(MAYBE)
def an_event_of_another_process(cuda: Driver, _: Any) -> None:
    cuda("cuIpcGetEventHandle", c.create_string_buffer(64), new_event(cuda))


@into(CLEAN)
def default_stream_waits_for_blocking_ones(cuda: Driver) -> None:
    stream = blocking(cuda)

    def once(host: Any) -> None:
        fetch(cuda, host, stream)
        idle(cuda, stream)
        cuda.synchronize(legacy(cuda))
        host[0] += 1

    rounds(cuda, once)


@into(CLEAN)
def copy_that_returns_when_it_is_over(cuda: Driver) -> None:
    def once(host: Any) -> None:
        fetch(cuda, host, legacy(cuda))
        cuda.read_device()
        host[0] += 1

    rounds(cuda, once)


@into(CLEAN)
def a_blocking_stream_behind_the_default_one(cuda: Driver) -> None:
    stream = blocking(cuda)

    def once(host: Any) -> None:
        fetch(cuda, host, legacy(cuda))
        idle(cuda, legacy(cuda))
        cuda.synchronize(stream)
        host[0] += 1

    rounds(cuda, once)


@into(CLEAN)
def host_function_fills_what_is_sent(cuda: Driver) -> None:
    """A guided decoder: it fetches logits, a function of the host makes a mask of them, and the mask is sent."""
    logits, mask, number = cuda.pinned(4096), cuda.pinned(4096), [0]

    def build(_: object) -> None:
        number[0] += logits[0] + 1
        mask[7] = number[0] & 127

    kept.append(Function(build))
    for _ in range(ROUNDS):
        fetch(cuda, logits)
        cuda("cuLaunchHostFunc", cuda.stream, kept[-1], None)
        send(cuda, mask)
    cuda.synchronize()


@into(CLEAN)
def host_function_of_a_graph_fills_what_is_sent(cuda: Driver) -> None:
    mask = cuda.pinned(4096)

    def build(_: object) -> None:
        mask[7] = (mask[7] + 1) & 127

    kept.append(Function(build))

    def work() -> None:
        fetch(cuda, mask)
        cuda("cuLaunchHostFunc", cuda.stream, kept[-1], None)
        send(cuda, mask)

    made = executable(cuda, captured(cuda, work))
    for _ in range(ROUNDS):
        cuda("cuGraphLaunch", made, cuda.stream)
    cuda.synchronize()


@into(CLEAN)
def copy_waits_for_a_value(cuda: Driver) -> None:
    cuda.gate.within_s = WITHIN_S  # the program opens it, for nobody is held

    def once(host: Any) -> None:
        cuda.gate.close(cuda.stream)
        send(cuda, host)
        host[9] = 1
        cuda.gate.open()

    rounds(cuda, once)


@into(CLEAN)
def copy_waits_for_an_event_behind_a_value(cuda: Driver) -> None:
    other = cuda.new_stream()

    def once(host: Any) -> None:
        event = new_event(cuda)
        cuda.gate.close(other)
        cuda("cuEventRecord", event, other)
        cuda("cuStreamWaitEvent", cuda.stream, event, 0)
        send(cuda, host)
        host[9] = 1
        cuda.gate.open()

    rounds(cuda, once)


PAGEABLE = 1 << 18


def pageable(order: int, touch: Callable[[Driver, mmap.mmap], object], bytes_: int = PAGEABLE) -> Program:
    """`touch` behind a batch that reads memory which nobody pinned."""

    def run(cuda: Driver) -> None:
        for _ in range(ROUNDS):
            memory = mmap.mmap(-1, bytes_)
            address = c.addressof(c.c_char.from_buffer(memory))
            cuda.batch([(cuda.device.value or 0, address, bytes_)], order)
            touch(cuda, memory)
            cuda.synchronize()

    return run


def rewrite(_: Driver, memory: mmap.mmap) -> None:
    memory[100_000 % len(memory)] = 1


def give_back(_: Driver, memory: mmap.mmap) -> None:
    memory.close()


def wait_and_rewrite(cuda: Driver, memory: mmap.mmap) -> None:
    cuda.synchronize()
    rewrite(cuda, memory)


def wait_and_give_back(cuda: Driver, memory: mmap.mmap) -> None:
    cuda.synchronize()
    memory.close()


def rewrite_in_the_stream(cuda: Driver, memory: mmap.mmap) -> None:
    kept.append(Function(lambda _: rewrite(cuda, memory)))
    cuda("cuLaunchHostFunc", cuda.stream, kept[-1], None)


RACY["pageable_source_of_a_batch"] = pageable(ORDER_STREAM, rewrite)
RACY["pageable_source_in_any_order"] = pageable(ORDER_ANY, rewrite)
RACY["pageable_source_that_goes"] = pageable(ORDER_STREAM, give_back)
RACY["pageable_source_where_nothing_else_is_made"] = pageable(ORDER_STREAM, rewrite)
CLEAN["pageable_source_behind_a_wait"] = pageable(ORDER_ANY, wait_and_rewrite)
CLEAN["pageable_source_that_goes_behind_a_wait"] = pageable(ORDER_STREAM, wait_and_give_back)
CLEAN["pageable_source_of_a_host_function"] = pageable(ORDER_STREAM, rewrite_in_the_stream)
RACY["pageable_source_that_is_small"] = pageable(ORDER_STREAM, rewrite, 8)
CLEAN["small_pageable_source_by_promise"] = pageable(ORDER_DURING_CALL, rewrite, 1 << 16)
CLEAN["small_pageable_source_behind_a_wait"] = pageable(ORDER_STREAM, wait_and_rewrite, 8)
MAYBE["pageable_source_that_the_driver_promised_to_have_read"] = pageable(ORDER_DURING_CALL, rewrite)


@into(CLEAN)
def pinned_source_that_the_driver_has_read(cuda: Driver) -> None:
    def once(host: Any) -> None:
        cuda.batch([(cuda.device.value or 0, c.addressof(host), len(host))], ORDER_DURING_CALL)
        host[0] += 1

    rounds(cuda, once, PAGEABLE)


@into(CLEAN)
def pageable_source_of_a_plain_copy(cuda: Driver) -> None:
    """The driver has read it when the call returns."""
    memory = c.create_string_buffer(PAGEABLE)
    for _ in range(ROUNDS):
        cuda("cuMemcpyHtoDAsync_v2", cuda.device, memory, Size(PAGEABLE), cuda.stream)
        memory[5] = b"1"
    cuda.synchronize()


def of_the_heap(touch: Callable[[Driver, Any], object]) -> Program:
    """A copy reads registered memory that shares its first page and its last with other memory."""

    def run(cuda: Driver) -> None:
        memory = mmap.mmap(-1, 4 * 4096)
        address = c.addressof(c.c_char.from_buffer(memory)) + 100
        host = (c.c_ubyte * (3 * 4096)).from_address(address)
        cuda("cuMemHostRegister_v2", Handle(address), Size(len(host)), 0)
        for _ in range(ROUNDS):
            send(cuda, host)
            idle(cuda)
            memory[0] = (memory[0] + 1) % 256  # beside it
            touch(cuda, host)
            cuda.synchronize()

    return run


def rewrite_first(_: Driver, host: Any) -> None:
    host[7] += 1


def rewrite_last(_: Driver, host: Any) -> None:
    host[len(host) - 1] += 1


def fetch_and_send(cuda: Driver, host: Any) -> None:
    """The device itself changes what a copy reads."""
    cuda("cuMemsetD8Async", cuda.device, c.c_ubyte(host[0] + 1), Size(len(host)), cuda.stream)
    fetch(cuda, host)
    send(cuda, host)


RACY["registered_source_in_a_page_with_others"] = of_the_heap(rewrite_first)
RACY["registered_source_in_its_last_page"] = of_the_heap(rewrite_last)
CLEAN["registered_source_that_nobody_touches"] = of_the_heap(lambda *_: None)
CLEAN["registered_source_that_the_device_writes"] = of_the_heap(fetch_and_send)


@into(CLEAN)
def mapped_host_memory_behind_a_wait(cuda: Driver) -> None:
    def once(host: Any) -> None:
        fetch(cuda, host)
        cuda.synchronize()
        host[0] += 1

    rounds(cuda, once, memory=Driver.mapped)


@into(CLEAN)
def memory_of_a_pool_that_is_freed_in_order(cuda: Driver) -> None:
    """The next one gets the same memory."""
    pool, seen = cuda.pool(), set()
    for _ in range(ROUNDS):
        host = cuda.pooled(4096, pool)
        host[0] = 1
        cuda.library.fakeHold(cuda.stream)
        send(cuda, host)
        cuda("cuMemFreeAsync", Address(c.addressof(host)), cuda.stream)
        cuda.library.fakeOpen(cuda.stream)
        seen.add(c.addressof(host))
    if len(seen) > 1:
        raise RuntimeError("the pool gives nothing again")


@into(CLEAN)
def memory_that_is_unmapped_behind_a_wait(cuda: Driver) -> None:
    for _ in range(ROUNDS):
        host = cuda.mapped(4096)
        fetch(cuda, host)
        cuda.synchronize()
        cuda("cuMemUnmap", Address(c.addressof(host)), Size(GRANULE))


@into(CLEAN)
def copies_between_peers(cuda: Driver) -> None:
    other = cuda.allocate(4096)
    host = cuda.pinned(4096)
    for _ in range(ROUNDS):
        cuda("cuMemcpyPeerAsync", other, cuda.context, cuda.device, cuda.context, Size(4096), cuda.stream)
        idle(cuda)
        host[0] += 1


def in_large_pages(at: int) -> Program:
    """A touch of byte `at`, while a copy reads the first page's worth of a page of 2 MiB."""

    def run(cuda: Driver) -> None:
        memory = mmap.mmap(-1, GRANULE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
        address = c.addressof(c.c_char.from_buffer(memory))
        cuda("cuMemHostRegister_v2", Handle(address), Size(GRANULE), 0)
        host = (c.c_ubyte * 4096).from_address(address)
        for _ in range(ROUNDS):
            send(cuda, host)
            idle(cuda)
            memory[at] = (memory[at] + 1) % 256
            cuda.synchronize()

    return run


LARGE = {"inside_in_large_pages": in_large_pages(77), "beside_in_large_pages": in_large_pages(1 << 20)}


@into(CLEAN)
def node_that_is_disabled(cuda: Driver) -> None:
    host, nodes, count = cuda.pinned(4096), (Handle * 1)(), Size(1)
    graph = captured(cuda, lambda: send(cuda, host))
    made = executable(cuda, graph)
    cuda("cuGraphGetNodes", graph, nodes, c.byref(count))
    cuda("cuGraphNodeSetEnabled", made, Handle(nodes[0]), 0)
    for _ in range(ROUNDS):
        cuda.library.fakeHold(cuda.stream)
        cuda("cuGraphLaunch", made, cuda.stream)
        host[3] = 1
        cuda.library.fakeOpen(cuda.stream)
    cuda.synchronize()


@into(CLEAN)
def never_waits(cuda: Driver) -> None:
    """More uses than the books hold, each of which has ended."""
    host = cuda.pinned(5000 * 64)
    for at in range(5000):
        to = Address(cuda.device.value)
        cuda("cuMemcpyHtoDAsync_v2", to, Handle(c.addressof(host) + 64 * at), Size(64), cuda.stream)
        idle(cuda)
    host[0] = 1  # its use has made room


class OfPools(Driver):
    """No stream but the default one, and device memory of a pool."""

    def new_stream(self) -> Handle:
        return legacy(self)

    def allocate(self, bytes_: int) -> Address:
        address, pool = Address(), self.pool(PLACE_DEVICE)
        self("cuMemAllocFromPoolAsync", c.byref(address), Size(bytes_), pool, self.stream)
        return address


DRIVERS = {"pageable_source_where_nothing_else_is_made": OfPools}

if __name__ == "__main__":
    given = sys.argv[1]
    {**RACY, **CLEAN, **MAYBE, **LARGE}[given](DRIVERS.get(given, Driver)())
    os._exit(0)
