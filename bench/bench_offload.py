"""Blocks between device and host: the connector's lanes beside a loop of copies and one batched call. Needs a GPU.

gbps is bytes over the time from the first call to the end on the device, submit_us what the caller's thread spends. The
link's own speed is one copy of all bytes, in the same run. With torch, each is measured beside a large matrix product
as well, whose slowing is matmul_ratio. Contents are compared after each measurement.
"""

import argparse
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from measure import RESULTS, Row, Summary, report
from numpy.typing import NDArray

from trtllm_kvfix.native import Device, DeviceArray, HostPool, Marks, TransferLane, open_device

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 8 * MIB)
TOTAL_BYTES = 512 * MIB
BLOCKS_MAX = 2048
ROUNDS = 9
Addresses = NDArray[np.uint64]


class Work(NamedTuple):
    """Scattered blocks of one size, both ways."""

    device: Device
    pool: HostPool
    blocks: DeviceArray
    block_bytes: int
    host: Addresses
    gpu: Addresses
    sizes: Addresses

    def spans(self, direction: str) -> tuple[Addresses, Addresses]:
        return (self.host, self.gpu) if direction == "store" else (self.gpu, self.host)


def make_work(device: Device, block_bytes: int) -> Work:
    count = min(BLOCKS_MAX, TOTAL_BYTES // block_bytes)
    pool = HostPool(device, host_bytes=count * block_bytes, block_bytes=block_bytes)
    blocks = device.empty((count, block_bytes // 4), "uint32")
    random = np.random.default_rng(1)
    steps = np.uint64(block_bytes)
    host = np.uint64(pool.address) + random.permutation(count).astype(np.uint64) * steps
    gpu = np.uint64(blocks.address) + random.permutation(count).astype(np.uint64) * steps
    return Work(device, pool, blocks, block_bytes, host, gpu, np.full(count, block_bytes, np.uint64))


class Loop:
    """One call for each block."""

    name = "copy_loop"

    def __init__(self, work: Work, direction: str) -> None:
        self.work, self.stream = work, work.device.create_stream()
        self.pairs = [tuple(map(int, pair)) for pair in zip(*work.spans(direction), strict=True)]

    def submit(self) -> None:
        for dst, src in self.pairs:
            self.work.device.copy(dst, src, self.work.block_bytes, self.stream)

    def wait(self) -> None:
        self.work.device.synchronize(self.stream)

    def close(self) -> None:
        self.work.device.destroy_stream(self.stream)


class Batch(Loop):
    """One call for all blocks, by the caller's thread, with no edge to anything."""

    name = "copy_batch"

    def __init__(self, work: Work, direction: str) -> None:
        super().__init__(work, direction)
        self.dst, self.src = work.spans(direction)
        self.order = "stream" if direction == "store" else "any"

    def submit(self) -> None:
        self.work.device.copy_batch(self.dst, self.src, self.work.sizes, self.order, self.stream)


class Whole(Loop):
    """All bytes in one copy: what the link gives."""

    name = "link"

    def __init__(self, work: Work, direction: str) -> None:
        super().__init__(work, direction)
        ends = work.pool.address, work.blocks.address
        self.pairs = [ends if direction == "store" else ends[::-1]]

    def submit(self) -> None:
        ((dst, src),) = self.pairs
        self.work.device.copy(dst, src, self.work.pool.bytes, self.stream)


class Lanes:
    """The connector's way: a mark in the stream that computes, and a thread that submits."""

    name = "kvfix_lane"
    marked = True

    def __init__(self, work: Work, direction: str) -> None:
        self.work, self.dst, self.src = work, *work.spans(direction)
        self.lane = TransferLane(work.device, order="stream" if direction == "store" else "any")
        self.marks = Marks(work.device, marks_max=4)
        self.computes = work.device.create_stream()
        self.number = 0

    def submit(self) -> None:
        mark = self.marks.set(self.computes) if self.marked else None
        number = self.lane.enqueue(self.dst, self.src, self.work.sizes, after=mark)
        if number is None:
            raise SystemExit(f"the lane refused: {self.lane.stats().first_error}")
        self.number = number

    def wait(self) -> None:
        self.lane.wait(self.number, 60)
        for ended in self.lane.take_ended():
            if ended.error:
                raise SystemExit(ended.error)

    def close(self) -> None:
        self.lane.close(10)
        self.work.device.destroy_stream(self.computes)


class UnmarkedLanes(Lanes):
    """What the mark costs is the difference to this."""

    name = "kvfix_lane_no_mark"
    marked = False


WAYS: tuple[Any, ...] = (Whole, Loop, Batch, Lanes, UnmarkedLanes)


def measure(way: Any, rounds: int, around: Callable[[], None] = lambda: None) -> tuple[Summary, Summary]:
    """Speed in GB/s, and the caller's microseconds."""
    speeds, submits = [], []
    for _ in range(rounds + 2):
        around()
        begin = perf_counter_ns()
        way.submit()
        submitted = perf_counter_ns()
        way.wait()
        speeds.append(way.work.pool.bytes / (perf_counter_ns() - begin))
        submits.append((submitted - begin) / 1e3)
    return Summary.of(speeds[2:]), Summary.of(submits[2:])


def both_at_once(work: Work, rounds: int) -> Summary:
    """Stores and loads of disjoint halves."""
    half = len(work.host) // 2
    first = work._replace(host=work.host[:half], gpu=work.gpu[:half], sizes=work.sizes[:half])
    second = work._replace(host=work.host[half:], gpu=work.gpu[half:], sizes=work.sizes[half:])
    store, load = Lanes(first, "store"), Lanes(second, "load")
    speeds = []
    for _ in range(rounds + 2):
        begin = perf_counter_ns()
        store.submit()
        load.submit()
        store.wait()
        load.wait()
        speeds.append(work.pool.bytes / (perf_counter_ns() - begin))
    store.close()
    load.close()
    return Summary.of(speeds[2:])


def require_equal(work: Work, direction: str) -> None:
    """What was moved last arrived: the bytes of both ends are the same, block by block."""
    pinned = work.device.pinned((len(work.host), work.block_bytes // 4), "uint32")
    stream = work.device.create_stream()
    steps = np.uint64(pinned.address) + np.arange(len(work.host), dtype=np.uint64) * np.uint64(work.block_bytes)
    work.device.copy_batch(steps, work.gpu, work.sizes, "stream", stream)
    work.device.synchronize(stream)
    work.device.destroy_stream(stream)
    slots = (work.host - np.uint64(work.pool.address)) // np.uint64(work.block_bytes)
    beside = HostPool(work.device, host_bytes=work.block_bytes, block_bytes=work.block_bytes)
    for number, slot in enumerate(slots[:: max(len(slots) // 16, 1)]):
        at = number * max(len(slots) // 16, 1)
        ctypes.memmove(beside.address, pinned.address + at * work.block_bytes, work.block_bytes)
        if beside.digests([0]) != work.pool.digests([slot]):
            raise SystemExit(f"{direction} of {work.block_bytes} B: block {at} did not arrive")


class Matmul:
    """A large product on a stream of its own, long enough to be busy all the while."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415  only where it is

        self.torch = torch
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.cuda.Stream()

    def begin(self, products: int = 40) -> None:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            begin.record()
            for _ in range(products):
                self.a @ self.a
            end.record()
        self.last = begin, end

    def milliseconds(self) -> float:
        self.last[1].synchronize()
        return float(self.last[0].elapsed_time(self.last[1]))


def beside_matmul(work: Work, direction: str) -> Iterator[Row]:
    matmul, way = Matmul(), Lanes(work, direction)
    alone, together, speeds = [], [], []
    for _ in range(5):
        matmul.begin()
        alone.append(matmul.milliseconds())
        matmul.begin()
        moved, begin = 0, perf_counter_ns()
        while not matmul.last[1].query():
            way.submit()
            way.wait()
            moved += work.pool.bytes
        speeds.append(moved / (perf_counter_ns() - begin))
        together.append(matmul.milliseconds())
    way.close()
    ratios = [after / before for before, after in zip(alone[1:], together[1:], strict=True)]
    yield Row(f"offload_{direction}_matmul", work.block_bytes, "kvfix_lane", "gbps", Summary.of(speeds[1:]))
    yield Row(f"offload_{direction}_matmul", work.block_bytes, "kvfix_lane", "matmul_ratio", Summary.of(ratios))


def rows(device: Device, sizes: tuple[int, ...], rounds: int, *, with_matmul: bool) -> Iterator[Row]:
    for size in sizes:
        work = make_work(device, size)
        device.fill_words(work.blocks.address, work.pool.bytes // 4, size, 0)
        device.synchronize(0)
        for direction in ("store", "load"):
            for make in WAYS:
                way = make(work, direction)
                speed, submit = measure(way, rounds)
                way.close()
                yield Row(f"offload_{direction}", size, way.name, "gbps", speed)
                yield Row(f"offload_{direction}", size, way.name, "submit_us", submit)
            require_equal(work, direction)
            if with_matmul:
                yield from beside_matmul(work, direction)
        yield Row("offload_both", size, "kvfix_lane", "gbps", both_at_once(work, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--matmul", action="store_true", help="beside a matrix product too; needs torch")
    arguments = parser.parse_args()
    sizes, rounds = ((64 * KIB, MIB), 3) if arguments.quick else (SIZES, ROUNDS)
    device = open_device(arguments.device)
    report("offload.csv", rows(device, sizes, rounds, with_matmul=arguments.matmul), arguments.results)


if __name__ == "__main__":
    main()
