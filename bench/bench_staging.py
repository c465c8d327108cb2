"""Block offsets to the device: upstream's racy ways, their published fixes, and ours. Needs a GPU and torch.

cpu_us is the time of the call on an idle stream, gpu_us what the stream then spends on it. For the second a gate holds
the stream while the call enqueues, so that the host's own pace is not measured. Before each call the table changes and
the caches are walked over, as the rest of an iteration would. Results are compared with a reference before and after.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
ENTRIES_MAX = 256 * 2048  # of one pool's rows: larger tables only repeat the story
LARGE = ((1, 1024, 4096), (1, 1024, 8192), (1, 2048, 8192), (4, 2048, 4096))  # a plane of 16, 32, 64 and 128 MiB
QUICK = ((1, 8, 64), (1, 256, 1024), (4, 256, 1024))
WARM_UP_ROUNDS, ROUNDS_MIN = 2, 5  # the first calls allocate and load
SECONDS_MAX = 0.3  # of one variant in one case, after ROUNDS_MIN: the whole grid takes about four minutes
WALK_BYTES = 8 << 20

Shape = tuple[int, int, int]


def all_cases() -> list[Shape]:
    return [
        (pools, sequences, blocks)
        for pools in POOLS
        for sequences in SEQUENCES
        for blocks in BLOCKS
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


def measure(device: native.Device, case: "Case", variant: "Variant", rounds_max: int) -> tuple[Summary, Summary]:
    """Median CPU and GPU microseconds; the table changes before every call, outside the clock."""
    cpu_us: list[float] = []
    gpu_us: list[float] = []
    walked = np.zeros(WALK_BYTES, np.uint8)
    deadline = time.monotonic() + SECONDS_MAX
    for number in range(WARM_UP_ROUNDS + rounds_max):
        if len(cpu_us) >= ROUNDS_MIN and time.monotonic() > deadline:
            break
        case.change_some()
        torch.cuda.synchronize()
        walked += 1
        cpu = call_us(variant.ship)
        torch.cuda.synchronize()
        if number == 0:
            variant.check()
        case.change_some()
        walked += 1
        gpu = stream_us(device, variant.ship)
        if number >= WARM_UP_ROUNDS:
            cpu_us.append(cpu)
            gpu_us.append(gpu)
    variant.check()
    return Summary.of(cpu_us), Summary.of(gpu_us)


def rows_of(device: native.Device, case: "Case", rounds_max: int) -> list[Row]:
    rows = []
    base: dict[str, Summary] = {}
    for make in VARIANTS:
        variant = make(device, case)
        for metric, summary in zip(("cpu_us", "gpu_us"), measure(device, case, variant, rounds_max), strict=True):
            base.setdefault(metric, summary)  # the first variant is the racy V1 original
            ratio = summary.median / base[metric].median
            compared = Summary(ratio, ratio, ratio, summary.rounds)
            rows.append(Row(case.name, case.blocks, variant.name, metric, summary, compared))
        variant.close()
    return rows


class Sized(NamedTuple):
    """The costs of both our ways in a case of this size."""

    table_bytes: int  # of one plane of v2, of both of v1
    snapshot_us: float
    early_us: float


def crossover(cases: list[Sized]) -> int:
    """The table size from which to prefer an early copy: where the wrong choices together cost least."""

    def excess(threshold: int) -> float:
        chosen = [one.early_us if one.table_bytes >= threshold else one.snapshot_us for one in cases]
        return sum(math.log(us / min(one.snapshot_us, one.early_us)) for us, one in zip(chosen, cases, strict=True))

    never = max(one.table_bytes for one in cases) + 1
    return min(sorted({*(one.table_bytes for one in cases), never}), key=excess)


def print_crossovers(measured: list[tuple["Case", list[Row]]]) -> None:
    """Values for k...BytesMin in cpp/staging/offset_stager.cc, by layout and metric."""
    for layout, planes in (("v1", 2), ("v2", 1)):
        for metric in ("cpu_us", "gpu_us"):
            cases = []
            for case, rows in measured:
                by_name = {row.manager: row.summary.median for row in rows if row.metric == metric}
                size = case.pools * case.sequences * case.blocks * planes * 4
                cases.append(Sized(size, *(by_name[f"ours_{layout}_{way}"] for way in ("snapshot", "early_copy"))))
            wins = sum(one.early_us < one.snapshot_us for one in cases)
            print(f"{layout} {metric}: early_copy from {crossover(cases)} bytes on; it wins {wins} of {len(cases)}")


def print_targets(measured: list[tuple["Case", list[Row]]]) -> None:
    """Prints where the automatic choice takes more CPU than the racy V1 original, and how it compares with the V2
    fix."""
    for case, rows in measured:
        cpu = {row.manager: row.summary.median for row in rows if row.metric == "cpu_us"}
        print(
            f"{case.name}: v1 {cpu['ours_v1_auto'] / cpu['racy_v1']:.2f} of racy v1,"
            f" v2 {cpu['ours_v2_auto'] / cpu['racy_v1']:.2f} of racy v1,"
            f" {cpu['snapshot_event_v2'] / cpu['ours_v2_auto']:.2f} times less than snapshot and event"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="at most")
    few = parser.add_mutually_exclusive_group()
    few.add_argument("--quick", action="store_true", help="four cases, some seconds")
    few.add_argument("--large", action="store_true", help="four cases, tables of 16 to 256 MiB")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print(f"skipped: needs {'torch' if torch is None else 'a GPU that torch can use'}")
        return 0
    device = native.open_device("cuda")
    # An executor's process has the cores of its rank, and its CPU work is on one thread: so is everyone's here.
    torch.set_num_threads(1)
    print(device.name, "torch", torch.__version__, "cpus", os.cpu_count(), "numpy", np.__version__)
    measured = []
    for shape in QUICK if options.quick else LARGE if options.large else all_cases():
        case = Case(*shape)
        rows = rows_of(device, case, options.rounds)
        report("staging.csv", rows, options.results)
        measured.append((case, rows))
    print_targets(measured)
    print_crossovers(measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
