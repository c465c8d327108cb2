"""Planted races with graphs: the touch comes while a launched graph is still to copy."""

import ctypes as c
from collections.abc import Callable
from typing import Any

import watch.gpu.planted_touches  # noqa: F401  adds its cases
from watch.gpu.driver import Address, Copy3d, Driver, Handle, Memset, Size
from watch.gpu.planted import BYTES, CASES, NEW, OLD, Round, box, case, to_device, to_host, upload


def executable(cuda: Driver, graph: Handle) -> Handle:
    made = Handle()
    cuda("cuGraphInstantiateWithFlags", c.byref(made), graph, c.c_ulonglong(0))
    return made


def captured(cuda: Driver, work: Callable[[], None]) -> Handle:
    graph = Handle()
    cuda("cuStreamBeginCapture_v2", cuda.stream, 1)
    work()
    cuda("cuStreamEndCapture", cuda.stream, c.byref(graph))
    return graph


def bytes_of(cuda: Driver, host: Any) -> Copy3d:
    """One row: the node of an instantiated graph takes no other."""
    copy = box(cuda, host)
    copy.width, copy.height, copy.depth = BYTES, 1, 1
    copy.src_pitch = copy.dst_pitch = BYTES
    copy.src_height = copy.dst_height = 1
    return copy


def copy_node(cuda: Driver, host: Any) -> tuple[Handle, Handle]:
    graph, node = Handle(), Handle()
    copy = bytes_of(cuda, host)
    cuda("cuGraphCreate", c.byref(graph), 0)
    cuda("cuGraphAddMemcpyNode", c.byref(node), graph, None, Size(0), c.byref(copy), cuda.context)
    return graph, node


def launched(cuda: Driver, host: Any, made: Handle) -> Round:
    return to_device(cuda, host, lambda: cuda("cuGraphLaunch", made, cuda.stream))


@case
def graph_of_a_capture(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return launched(cuda, host, executable(cuda, captured(cuda, upload(cuda, host))))


@case
def graph_of_nodes(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    return launched(cuda, host, executable(cuda, copy_node(cuda, host)[0]))


@case
def graph_within_a_graph(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    graph, node = Handle(), Handle()
    cuda("cuGraphCreate", c.byref(graph), 0)
    cuda("cuGraphAddChildGraphNode", c.byref(node), graph, None, Size(0), copy_node(cuda, host)[0])
    return launched(cuda, host, executable(cuda, graph))


@case
def graph_with_another_buffer(cuda: Driver) -> Round:
    """The node was instantiated with one buffer and then given another."""
    first, host = cuda.pinned(BYTES), cuda.pinned(BYTES)
    graph, node = copy_node(cuda, first)
    made = executable(cuda, graph)
    copy = bytes_of(cuda, host)
    cuda("cuGraphExecMemcpyNodeSetParams", made, node, c.byref(copy), cuda.context)
    return launched(cuda, host, made)


@case
def graph_updated_as_a_whole(cuda: Driver) -> Round:
    first, host = cuda.pinned(BYTES), cuda.pinned(BYTES)
    made = executable(cuda, captured(cuda, upload(cuda, first)))
    other = captured(cuda, upload(cuda, host))
    result = (c.c_ulonglong * 4)()
    cuda("cuGraphExecUpdate_v2", made, other, result)
    return launched(cuda, host, made)


@case
def graph_with_a_memset(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    graph, node = Handle(), Handle()
    memset = Memset(c.addressof(host), 0, NEW, 1, BYTES, 1)
    cuda("cuGraphCreate", c.byref(graph), 0)
    cuda("cuGraphAddMemsetNode", c.byref(node), graph, None, Size(0), c.byref(memset), cuda.context)
    made = executable(cuda, graph)
    return to_host(cuda, host, lambda: cuda("cuGraphLaunch", made, cuda.stream))


@case
def graph_to_host(cuda: Driver) -> Round:
    host = cuda.pinned(BYTES)
    download = captured(cuda, lambda: cuda("cuMemcpyDtoHAsync_v2", host, cuda.device, Size(BYTES), cuda.stream))
    made = executable(cuda, download)
    return to_host(cuda, host, lambda: cuda("cuGraphLaunch", made, cuda.stream))


def freed(call: str) -> None:
    """Memory that goes back while the device uses it: a new one for each round."""

    def make(cuda: Driver) -> Round:
        room: list[Any] = []

        def begin() -> None:
            room[:] = [cuda.pinned(BYTES)]
            if call == "cuMemHostUnregister":
                cuda("cuMemFreeHost", room[0])
                kept = (c.c_ubyte * (BYTES + 4096))()
                aligned = (c.addressof(kept) + 4095) // 4096 * 4096
                room[:] = [(c.c_ubyte * BYTES).from_address(aligned), kept]
                cuda("cuMemHostRegister_v2", room[0], Size(BYTES), 0)
            c.memset(room[0], OLD, BYTES)

        def enqueue() -> None:
            cuda("cuMemcpyHtoDAsync_v2", cuda.device, Address(c.addressof(room[0])), Size(BYTES), cuda.stream)

        def touch() -> None:
            cuda.gate.open_within(0.01)  # the driver may wait for the device before it takes memory back
            cuda(call, room[0])

        return Round(enqueue, touch, lambda: True, begin)

    CASES[f"by_{call}"] = make


freed("cuMemFreeHost")
freed("cuMemHostUnregister")

ALL_CASES = dict(CASES)  # those of all three modules
