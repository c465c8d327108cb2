"""Blocks between device and host: the connector's lanes beside a loop of copies, one batched call, and others' way.

Needs a GPU. All bytes go in transfers of at most 2,048 blocks, given out one behind the other as a connector does: gbps
is bytes over the time from the first call to the end on the device, submit_us what the caller's thread spends on a
transfer, transfer_us how long one alone takes. The link's own speed is one copy of all bytes, in the same run. With
torch, each is measured beside a large matrix product as well: matmul_ratio is its time with copies over its time
without, of neighbouring products. Contents are compared after each measurement.
"""

import argparse
import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from matmul import Matmul, beside_matmul
from measure import RESULTS, Row, Summary, report
from offload_ways import BESIDE_MATMUL, WAYS, Batch, Lanes, TwoSmLanes, Whole, Work, make_work

from trtllm_kvfix.native import Device, open_device

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB, 8 * MIB)
ROUNDS = 9


def timed_ns(call: Callable[[], None]) -> int:
    begin = perf_counter_ns()
    call()
    return perf_counter_ns() - begin


def measure(way: Any, rounds: int) -> dict[str, Summary]:
    """Return a summary by the name of its metric: all transfers at once, then one alone."""
    values: dict[str, list[float]] = {"gbps": [], "submit_us": [], "transfer_us": []}
    for _ in range(rounds + 2):
        begin = perf_counter_ns()
        submits = [timed_ns(partial(way.submit, transfer)) for transfer in way.transfers]
        way.wait()
        values["gbps"].append(way.work.bytes / (perf_counter_ns() - begin))
        values["submit_us"].append(float(np.median(submits)) / 1e3)
        begin = perf_counter_ns()
        way.submit(way.transfers[0])
        way.wait()
        values["transfer_us"].append((perf_counter_ns() - begin) / 1e3)
    return {metric: Summary.of(of_one[2:]) for metric, of_one in values.items()}


def both_at_once(work: Work, make: Any, rounds: int) -> Summary:
    """Stores and loads of disjoint halves."""
    store, load = make(work.half(0), "store"), make(work.half(1), "load")
    speeds = []
    for _ in range(rounds + 2):
        begin = perf_counter_ns()
        for one, other in zip(store.transfers, load.transfers, strict=True):
            store.submit(one)
            load.submit(other)
        store.wait()
        load.wait()
        speeds.append(work.bytes / (perf_counter_ns() - begin))
    store.close()
    load.close()
    return Summary.of(speeds[2:])


class Contents:
    """Every word of the device's blocks is its own number, so that each arrives in its place or is noticed."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.words = np.arange(work.bytes // 4, dtype=np.uint32).reshape(len(work.gpu), -1)
        self.pinned = work.device.pinned(self.words.shape, "uint32")
        self.pinned.array[:] = self.words
        self._copy(work.blocks.address, self.pinned.address)
        self.pool = np.ctypeslib.as_array((ctypes.c_uint32 * self.words.size).from_address(work.pool.address))
        self.pool = self.pool.reshape(self.words.shape)

    def spoil(self, direction: str) -> None:
        """Overwrites the destination, so that a value which does not arrive is noticed."""
        if direction == "store":
            self.pool[:] = 0xFFFF_FFFF
        else:
            self.work.device.fill_words(self.work.blocks.address, self.words.size, 0xFFFF_FFFF, 0)
            self.work.device.synchronize(0)

    def require(self, direction: str) -> None:
        if direction == "store":
            step = np.uint64(self.work.block_bytes)
            slots = (self.work.host - np.uint64(self.work.pool.address)) // step
            blocks = (self.work.gpu - np.uint64(self.work.blocks.address)) // step
            arrived = np.array_equal(self.pool[slots], self.words[blocks])
        else:
            self._copy(self.pinned.address, self.work.blocks.address)
            arrived = np.array_equal(self.pinned.array, self.words)
        if not arrived:
            raise SystemExit(f"a {direction} of blocks of {self.work.block_bytes} B did not arrive whole")

    def _copy(self, dst: int, src: int) -> None:
        self.work.device.copy(dst, src, self.work.bytes, 0)
        self.work.device.synchronize(0)


def rows_beside_matmul(work: Work, direction: str, rounds: int) -> Iterator[Row]:
    ways = [make(work, direction) for make in BESIDE_MATMUL]
    for name, (speeds, ratios) in beside_matmul(Matmul(), ways, rounds).items():
        yield Row(f"offload_{direction}_matmul", work.block_bytes, name, "gbps", Summary.of(speeds))
        yield Row(f"offload_{direction}_matmul", work.block_bytes, name, "matmul_ratio", Summary.of(ratios))
    for way in ways:
        way.close()


def rows(device: Device, sizes: tuple[int, ...], rounds: int, *, with_matmul: bool) -> Iterator[Row]:
    for size in sizes:
        work = make_work(device, size)
        contents = Contents(work)
        for direction in ("store", "load"):
            for make in WAYS:  # all but the link's own leave every block where it belongs
                contents.spoil(direction)
                way = make(work, direction)
                for metric, summary in measure(way, rounds).items():
                    yield Row(f"offload_{direction}", size, way.name, metric, summary)
                way.close()
                if make is not Whole:
                    contents.require(direction)
            if with_matmul:
                yield from rows_beside_matmul(work, direction, rounds)
        for make in (Batch, Lanes, TwoSmLanes):
            yield Row("offload_both", size, make.name, "gbps", both_at_once(work, make, rounds))


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
