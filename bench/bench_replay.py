"""Measures what `trtllm-kvfix replay` costs a request, tokens, model and all: the generated chat, and a trace if named.

One round is one whole replay. The figure answers how long a trace takes and is no measure of the block manager alone.
With a trace also whole sweeps of docs/replay.md, once each: parsing, bounds and all processes. sweep_cpu_s is processor
time of all of them, which others on the machine change less than sweep_s.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from measure import RESULTS, Row, Summary, pin_to_one_core, report

from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import CacheShape
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import read_trace

ROUNDS = 5
# An 8B model with 60 GiB for its cache, as in docs/replay.md.
SERVER = (
    *("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--blocks-primary", "60GiB"),
    *("--max-batch-size", "128", "--max-num-tokens", "16384", "--iteration-ms", "20"),
)
SWEEPS = {"built-in": "0,200GiB,400GiB,800GiB,1.6TiB,3.2TiB", "connector": "200GiB,400GiB,800GiB,1.6TiB"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="JSON lines, as trtllm-kvfix replay takes them")
    parser.add_argument("--blocks-primary", type=int, default=16384)
    parser.add_argument("--blocks-host", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="one round")
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0)
    pin_to_one_core()
    rounds = 1 if arguments.quick else arguments.rounds
    chat = generate("chat", seed=0)
    report("replay.csv", measure("chat", chat.workload, chat.shape, rounds), arguments.results)
    if arguments.trace is not None:
        shape = chat.shape.model_copy(
            update={
                "blocks_primary": arguments.blocks_primary,
                "blocks_host": arguments.blocks_host,
                "max_batch_size": 64,
                "max_num_tokens": 8192,
            }
        )
        requests = read_trace(arguments.trace).requests
        workload = Workload(arguments.trace.stem, requests, TokenBook(requests))
        report("replay.csv", measure(arguments.trace.stem, workload, shape, rounds), arguments.results)
        os.sched_setaffinity(0, cores)
        report("replay.csv", measure_sweeps(arguments.trace), arguments.results)


def measure(name: str, workload: Workload, shape: CacheShape, rounds: int) -> Iterator[Row]:
    seconds = []
    for _ in range(rounds):
        began = perf_counter()
        outcome = Replay(workload, shape).run()
        seconds.append(perf_counter() - began)
        if not outcome.kept_its_promise:
            raise SystemExit(f"{name}: batch admission broke a promise; measuring it makes no sense")
    per_request = Summary.of([1e6 * spent / len(workload.requests) for spent in seconds])
    yield Row(name, shape.tokens_per_block, "trtllm-kvfix", "replay_us_per_request", per_request)
    yield Row(name, shape.tokens_per_block, "trtllm-kvfix", "replay_s", Summary.of(seconds))


def measure_sweeps(trace: Path) -> Iterator[Row]:
    for kind, sizes in SWEEPS.items():
        command = [sys.executable, "-m", "trtllm_kvfix", "replay", str(trace), *SERVER, "--host-tier", kind]
        began, before = perf_counter(), os.times()
        subprocess.run([*command, "--sweep", sizes, "--json"], check=True, stdout=subprocess.DEVNULL)
        wall, after = perf_counter() - began, os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])  # of children and theirs
        name = f"{trace.stem}, {sizes.count(',') + 1} sizes, {kind}"
        for metric, value in (("sweep_s", wall), ("sweep_cpu_s", cpu)):
            yield Row(name, 32, "trtllm-kvfix", metric, Summary(value, value, value, 1))


if __name__ == "__main__":
    main()
