"""Block offsets to the device: upstream's racy ways, their published fixes, and ours. Needs a GPU and torch.

cpu_us is the time of the call on an idle stream, gpu_us what the stream then spends on it. For the second a gate holds
the stream while the call enqueues, so that the host's own pace is not measured. Every result is compared with a
reference.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import RESULTS, Row, Summary, report

from trtllm_kvfix import native

try:
    import torch
    from staging_variants import VARIANTS, Case, Variant
except ImportError:  # main() says so
    torch = None

SEQUENCES = (8, 64, 256, 1024, 2048)
BLOCKS = (64, 256, 1024, 4096, 8192)
POOLS = (1, 4)
CHANGED = ((0.01, False), (0.03, False), (0.03, True), (1.0, False))
ENTRIES_MAX = 256 * 4096  # of one pool's rows: larger tables only repeat the story
QUICK = ((1, 8, 64, 0.03, False), (1, 256, 1024, 0.03, False), (1, 256, 1024, 0.03, True), (4, 256, 1024, 0.03, False))


def all_cases() -> list[tuple[int, int, int, float, bool]]:
    return [
        (pools, sequences, blocks, *changed)
        for pools in POOLS
        for sequences in SEQUENCES
        for blocks in BLOCKS
        for changed in CHANGED
        if sequences * blocks <= ENTRIES_MAX
    ]


def call_us(ship: Callable[[], None]) -> float:
    begin = time.perf_counter_ns()
    ship()
    return (time.perf_counter_ns() - begin) / 1e3


def stream_us(device: native.Device, ship: Callable[[], None]) -> float:
    stream = torch.cuda.current_stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    gate = device.close_gate(stream.cuda_stream)
    begin.record(stream)
    ship()
    end.record(stream)
    device.open_gate(gate)
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def measure(device: native.Device, case: "Case", variant: "Variant", rounds: int) -> tuple[Summary, Summary]:
    """Median CPU and GPU microseconds; the table changes before every call, outside the clock."""
    cpu_us, gpu_us = [], []
    for number in range(rounds + 3):
        case.change_some()
        torch.cuda.synchronize()
        cpu = call_us(variant.ship)
        torch.cuda.synchronize()
        variant.check()
        case.change_some()
        gpu = stream_us(device, variant.ship)
        if number >= 3:  # the first calls allocate and load
            cpu_us.append(cpu)
            gpu_us.append(gpu)
    return Summary.of(cpu_us), Summary.of(gpu_us)


def rows_of(device: native.Device, case: "Case", rounds: int) -> list[Row]:
    rows = []
    base: dict[str, Summary] = {}
    for make in VARIANTS:
        variant = make(device, case)
        for metric, summary in zip(("cpu_us", "gpu_us"), measure(device, case, variant, rounds), strict=True):
            base.setdefault(metric, summary)  # the first variant is the racy V1 original
            ratio = summary.median / base[metric].median
            rows.append(
                Row(case.name, case.blocks, variant.name, metric, summary, Summary(ratio, ratio, ratio, rounds))
            )
        variant.close()
    return rows


def crossover(rows: list[Row]) -> None:
    """Print from which table size on the device table costs less CPU than the snapshot, at 3 % changed."""
    for layout in ("v1", "v2"):
        by_case = {
            name: {row.manager: row.summary.median for row in rows if row.workload == name and row.metric == "cpu_us"}
            for name in dict.fromkeys(row.workload for row in rows if row.workload.endswith("3%"))
        }
        wins = [
            name for name, cpu in by_case.items() if cpu[f"ours_{layout}_device_table"] < cpu[f"ours_{layout}_snapshot"]
        ]
        print(f"{layout}: device table costs less CPU than the snapshot in {', '.join(wins) or 'no case'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="three cases")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print(f"skipped: needs {'torch' if torch is None else 'a GPU that torch can use'}")
        return 0
    device = native.open_device("cuda")
    # An executor's process has the cores of its rank, and its CPU work is on one thread: so is everyone's here.
    torch.set_num_threads(1)
    print(device.name, "torch", torch.__version__, "cpus", os.cpu_count(), "numpy", np.__version__)
    every: list[Row] = []
    for shape in QUICK if options.quick else all_cases():
        case = Case(*shape)
        rows = rows_of(device, case, options.rounds)
        report("staging.csv", rows, options.results)
        every += rows
    crossover(every)
    print(
        "median of medians, ours over racy V1, cpu:",
        statistics.median(
            row.summary.median / base.summary.median
            for row in every
            if row.manager == "ours_v1_auto" and row.metric == "cpu_us"
            for base in every
            if base.manager == "racy_v1" and base.metric == "cpu_us" and base.workload == row.workload
        ),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
