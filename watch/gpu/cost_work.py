"""One process whose calls cost.py measures: a line of its input names a measure, a line of its output has the figures.

A guarded copy is the call, its share of the wait, and the write into its buffer behind it; an unwaited one is the call
alone, in a program that never waits. An unguarded call is the launch of a kernel. The decode step writes 20 small
pinned buffers, copies them to the device, launches 10 ms of kernels and waits. A graph is launched and waited for: of
kernels that do almost nothing, and of as many that take 10 ms.
"""

import ctypes as c
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

from hostrace import launch
from watch.gpu.driver import Driver, Handle, Size, Struct
from watch.gpu.planted_graphs import captured, executable

SIZES = (256, 4096, 65_536, 1 << 20)
AT_ONCE = (1, 20, 200)
PAUSE_S = 0.001
PAGE = 4096
SAMPLES = 200  # copies in one figure
LAUNCHES = 500
COPIES, KERNELS, STEP_MS, STEPS = 20, 100, 10.0, 20
NODES = (1, 300, 1000, 3000)
NODES_OF_STEP = 1000
MEASURES = (
    *(f"copy {bytes_} {at_once} 0" for bytes_ in SIZES for at_once in AT_ONCE),
    *(f"copy {bytes_} 1 1" for bytes_ in SIZES),
    "launch",
    "unwaited 6000",
)  # and "decode CYCLES", where "cycles KERNELS" says how many a kernel spins
GRAPH_MEASURES = tuple(f"graph {nodes}" for nodes in NODES)  # and "graph_step CYCLES"


class Work:
    def __init__(self, layers: str) -> None:
        self.cuda = Driver(SIZES[-1])
        self.protect_twice_ns: Any = c.CDLL(layers).protect_twice_ns
        self.protect_twice_ns.restype = c.c_double
        self.cuda.gate.end()
        self.buffers = cache(self._buffers)
        self.graphs = cache(self._graphs)
        self.function = self.cuda.function("copy_byte_of_struct")

    def measure(self, name: str) -> dict[str, float]:
        kind, *arguments = name.split()
        measures: dict[str, Callable[..., dict[str, float]]] = {
            "copy": self.copy,
            "launch": self.launch,
            "unwaited": self.unwaited,
            "cycles": self.cycles,
            "decode": self.decode,
            "graph": self.graph,
            "graph_step": self.graph_step,
        }
        return measures[kind](*map(int, arguments))

    def _buffers(self, bytes_: int, count: int) -> list[Any]:
        return [self.cuda.pinned(bytes_) for _ in range(count)]

    def copy(self, bytes_: int, at_once: int, paced: int) -> dict[str, float]:
        buffers = self.buffers(bytes_, at_once)
        to, size, stream = self.cuda.device, Size(bytes_), self.cuda.stream
        took = []
        for _ in range(max(SAMPLES // at_once, 2) // (10 if paced else 1)):
            idle_until = time.perf_counter() + PAUSE_S * paced
            while time.perf_counter() < idle_until:
                pass
            begin = time.perf_counter_ns()
            for buffer in buffers:
                self.cuda("cuMemcpyHtoDAsync_v2", to, buffer, size, stream)
            enqueued = time.perf_counter_ns()
            self.cuda.synchronize()
            waited = time.perf_counter_ns()
            for buffer in buffers:
                buffer[0] = 1
            end = time.perf_counter_ns()
            took.append((end - begin, enqueued - begin, waited - enqueued, end - waited))
        whole, enqueue, wait, write = (median(part) / at_once / 1000 for part in zip(*took, strict=True))
        parts = {"us": whole, "enqueue_us": enqueue, "wait_us": wait, "write_us": write}
        return parts | self.protected([c.addressof(buffer) for buffer in buffers], bytes_, len(took))

    def protected(self, begins: list[int], bytes_: int, times: int) -> dict[str, float]:
        """What mprotect alone takes for these buffers. A watched program that calls it is left alone from then on."""
        if launch.ENV_INJECTION in os.environ:
            return {}
        count = len(begins)
        pointers = (Handle * count)(*begins)
        took = median(self.protect_twice_ns(pointers, Size(count), Size(bytes_)) / 1000 for _ in range(times))
        return {"mprotect_twice_us": took}

    def unwaited(self, copies: int) -> dict[str, float]:
        """Nobody waits, so the books fill with uses that have ended. The buffers do not lie side by side."""
        (ring,) = self.buffers(2 * PAGE * copies, 1)
        begins = [c.addressof(ring) + 2 * PAGE * at for at in range(copies)]
        to, size, stream, sources = self.cuda.device, Size(PAGE), self.cuda.stream, [*map(Handle, begins)]
        begin = time.perf_counter_ns()
        for source in sources:
            self.cuda("cuMemcpyHtoDAsync_v2", to, source, size, stream)
        took = (time.perf_counter_ns() - begin) / copies / 1000
        return {"us": took} | self.protected(begins, PAGE, 1)

    def kernels(self, count: int) -> None:
        device = self.cuda.device.value
        given = Struct(0, device, device + 1, 0)
        params = (Handle * 1)(c.addressof(given))
        shape, none = [c.c_uint(1)] * 6, c.c_uint(0)
        call = self.cuda.library.cuLaunchKernel
        for _ in range(count):
            call(self.function, *shape, none, self.cuda.stream, params, None)

    def launch(self) -> dict[str, float]:
        begin = time.perf_counter_ns()
        self.kernels(LAUNCHES)
        took = time.perf_counter_ns() - begin
        self.cuda.synchronize()
        return {"us": took / LAUNCHES / 1000}

    def _graphs(self, nodes: int) -> Handle:
        return executable(self.cuda, captured(self.cuda, lambda: self.kernels(nodes)))

    def graph(self, nodes: int) -> dict[str, float]:
        made = self.graphs(nodes)
        return launched(lambda: self.cuda("cuGraphLaunch", made, self.cuda.stream), self.cuda.synchronize)

    def graph_step(self, cycles: int) -> dict[str, float]:
        torch, *_ = decode_room()
        return launched(step_graph(cycles).replay, torch.cuda.synchronize)

    def cycles(self, kernels: int) -> dict[str, float]:
        """Counts the cycles that a kernel spins so that all of a step take STEP_MS: asked once, since clocks change."""
        torch, *_ = decode_room()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1 << 28)
        begin.record()
        torch.cuda._sleep(1 << 24)
        end.record()
        torch.cuda.synchronize()
        return {"cycles": (1 << 24) * STEP_MS / kernels / begin.elapsed_time(end)}

    def decode(self, cycles: int) -> dict[str, float]:
        torch, buffers, devices = decode_room()
        took = []
        for _ in range(STEPS):
            begin = time.perf_counter_ns()
            for buffer in buffers:
                buffer[0] += 1
            written = time.perf_counter_ns()
            for buffer, device in zip(buffers, devices, strict=True):
                device.copy_(buffer, non_blocking=True)
            enqueued = time.perf_counter_ns()
            for _ in range(KERNELS):
                torch.cuda._sleep(cycles)
            launched = time.perf_counter_ns()
            torch.cuda.synchronize()
            end = time.perf_counter_ns()
            took.append((end - begin, written - begin, enqueued - written, launched - enqueued, end - launched))
        parts = [median(part) / 1000 for part in zip(*took, strict=True)]
        return dict(zip(("us", "write_us", "enqueue_us", "launch_us", "wait_us"), parts, strict=True))


def launched(launch: Callable[[], object], wait: Callable[[], object]) -> dict[str, float]:
    took = []
    for _ in range(STEPS):
        begin = time.perf_counter_ns()
        launch()
        returned = time.perf_counter_ns()
        wait()
        end = time.perf_counter_ns()
        took.append((end - begin, returned - begin, end - returned))
    parts = (median(part) / 1000 for part in zip(*took, strict=True))
    return dict(zip(("us", "launch_us", "wait_us"), parts, strict=True))


@cache
def step_graph(cycles: int) -> Any:
    torch, *_ = decode_room()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES_OF_STEP):
            torch.cuda._sleep(cycles)
    return graph


@cache
def decode_room() -> tuple[Any, list[Any], list[Any]]:
    import torch  # noqa: PLC0415

    buffers = [torch.zeros(1024, dtype=torch.int32, pin_memory=True) for _ in range(COPIES)]
    return torch, buffers, [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(COPIES)]


if __name__ == "__main__":
    work = Work(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(work.measure(line)), flush=True)
