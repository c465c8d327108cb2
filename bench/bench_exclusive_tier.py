"""Compares policies of a host tier that is offered what the GPU evicts, as the built-in one is, and a connector is not.

host_hit_percent         prompt tokens that the host tier brought
written_per_computed     blocks written to it, for each that was computed

All are simulations over the same requests, one after the other, with a GPU that drops what was asked for the longest
ago. `exclusive LRU` stands for the built-in tier. No code of the package has these policies.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench_host_admission import BLOCK, BLOCK_BYTES, GIB, SHAPE, agents, once
from host_policies import EXCLUSIVE, Asked, asked_for, evicted_to
from measure import RESULTS, Row, report

from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import read_trace

SIZES_GIB = (20, 55, 100, 200, 400, 800)
CHAT_SLOTS = (40, 80, 150, 300, 600, 1200)  # beside 150 blocks of the GPU


class Case(NamedTuple):
    name: str
    asked: list[Asked]
    prompt_tokens: int
    tokens_per_block: int
    gpu_blocks: int
    sizes: dict[str, int]  # slots


def case_of(workload: Workload, tokens_per_block: int, gpu_blocks: int, sizes: dict[str, int]) -> Case:
    asked = asked_for(workload, tokens_per_block, [0] * len(workload.requests))
    prompts = sum(request.input_length for request in workload.requests)
    return Case(workload.name, asked, prompts, tokens_per_block, gpu_blocks, sizes)


def measure(case: Case) -> Iterator[Row]:
    blocks = sum(len(asked.blocks) for asked in case.asked)
    for size, slots in case.sizes.items():
        for name, make in EXCLUSIVE.items():
            on_gpu, from_host, written = evicted_to(make(slots), case.asked, case.gpu_blocks)
            where = f"{case.name}, {size}"
            percent = 100 * case.tokens_per_block * from_host / case.prompt_tokens
            yield Row(where, case.tokens_per_block, name, "host_hit_percent", once(percent))
            yield Row(
                where, case.tokens_per_block, name, "written_per_computed",
                once(written / (blocks - on_gpu - from_host)),
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, action="append", default=[], metavar="FILE", help="may be given again")
    parser.add_argument("--requests", type=int, default=6000, help="of the traffic that is made here")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="300 requests and the smallest size")
    arguments = parser.parse_args()
    requests = 300 if arguments.quick else arguments.requests
    few = 1 if arguments.quick else None
    server = {f"{gib} GiB": gib * GIB // BLOCK_BYTES for gib in SIZES_GIB[:few]}
    chat = {f"{slots} blocks": slots for slots in CHAT_SLOTS[:few]}
    cases = [
        case_of(agents(requests), BLOCK, SHAPE.blocks_primary, server),
        case_of(generate("chat", seed=0).workload, 32, 150, chat),
    ]
    for trace in arguments.trace:
        read = read_trace(trace).requests
        cases.append(case_of(Workload(trace.stem, read, TokenBook(read)), BLOCK, SHAPE.blocks_primary, server))
    for case in cases:
        report("host_admission.csv", measure(case), arguments.results)


if __name__ == "__main__":
    main()
