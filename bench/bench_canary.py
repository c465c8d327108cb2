"""Measures what the canary takes from a step: the loop's thread, and the stream that its kernel stands on.

gbps is what the kernel digests, and beside it what a copy within the device reads and writes: the memory's speed.
Blocks do not change. Run it on a GPU (--device cuda); on the simulated device all but the loop's time means nothing.
"""

import argparse
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np
from measure import RESULTS, Row, Summary, quiet_garbage_collector, report

from trtllm_kvfix.canary.canary import Canary
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.canary.ring import Pool
from trtllm_kvfix.native import open_device

TOKENS_PER_BLOCK, LAYERS = 32, 64
MIB = 1 << 20
LAUNCHES = 4  # one behind the other, so that a launch costs nothing


def rows(device_name: str, block_mib: int, blocks_per_step: int, steps: int) -> list[Row]:
    device = open_device(device_name)
    stream = device.create_stream()
    blocks = 4 * blocks_per_step
    memory = device.empty((blocks * block_mib * MIB,), "uint8")
    pool = Pool(memory.address, block_mib * MIB, LAYERS)
    canary = Canary(device, stream, pool, TOKENS_PER_BLOCK, blocks_per_step, seed=0)
    end = blocks * TOKENS_PER_BLOCK
    canary.admitted(1, range(blocks), 0)
    canary.step([Write(1, range(blocks), 0, end, end)])
    while canary.report().blocks_taken < blocks:  # a burst is spread over steps
        device.synchronize(stream)
        canary.step([])
    loop_us, stream_us = [], []
    with quiet_garbage_collector():
        for _ in range(steps):
            begin = perf_counter()
            canary.step([])
            enqueued = perf_counter()
            device.synchronize(stream)
            loop_us.append((enqueued - begin) * 1e6)
            stream_us.append((perf_counter() - enqueued) * 1e6)
    found = canary.report()
    if found.counts or found.state != "observes":
        raise RuntimeError(f"blocks have not changed, but the canary {found.state}: {found.counts}")
    canary.close()
    device.destroy_stream(stream)
    name = f"{block_mib} MiB"
    return [
        Row(name, blocks_per_step, "canary", "loop_us", Summary.of(loop_us)),
        Row(name, blocks_per_step, "canary", "stream_us", Summary.of(stream_us)),
    ]


def rates(device_name: str, block_mib: int, memory_mib: int, rounds: int) -> list[Row]:
    """Of a kernel over more blocks than caches hold, and of a copy of the same bytes."""
    device = open_device(device_name)
    stream = device.create_stream()
    count, slot_bytes = memory_mib // block_mib, block_mib * MIB
    source, target = (device.empty([count * slot_bytes], "uint8") for _ in range(2))
    pool = Pool(source.address, slot_bytes, LAYERS)
    blocks, sums = device.pinned([count], "uint64"), device.pinned([count, LAYERS, pool.parts], "uint64")
    blocks.array[:] = pool.address + slot_bytes * np.arange(count, dtype=np.uint64)

    def digest() -> None:
        device.digest_blocks(blocks, 0, count, sums, pool.layer_bytes, 1, stream)

    def copy() -> None:
        device.copy(target.address, source.address, count * slot_bytes, stream)

    found = []
    for name, enqueue, moved in (("digest", digest, 1), ("copy", copy, 2)):
        gbps = []
        for _ in range(rounds):
            device.synchronize(stream)
            begin = perf_counter()
            for _ in range(LAUNCHES):
                enqueue()
            device.synchronize(stream)
            gbps.append(LAUNCHES * moved * count * slot_bytes / (perf_counter() - begin) / 1e9)
        found.append(Row(f"{block_mib} MiB", count, name, "gbps", Summary.of(gbps)))
    device.destroy_stream(stream)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    args = parser.parse_args()
    steps = 10 if args.quick else args.steps
    found = (row for mib in (1, 2, 4, 8) for number in (1, 8) for row in rows(args.device, mib, number, steps))
    memory_mib, rounds = (16, 3) if args.quick else (2048, 20)
    of_kernel = (row for mib in (1, 2, 4, 8) for row in rates(args.device, mib, memory_mib, rounds))
    report("canary.csv", chain(found, of_kernel), args.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
