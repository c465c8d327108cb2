"""Compares policies of a host tier that is offered what the GPU evicts, as the built-in one is, and a connector is not.

host_hit_percent         prompt tokens that the host tier brought
written_per_computed     blocks written to it, for each that was computed
written_blocks           all of them

`native, ...` are replays of the native manager's own host tier, with each `native_host_admission`, and
`connector, adaptive` of the connector's, which is not offered what the GPU evicts. `exclusive ...` are
simulations over the same requests, one after the other, with a GPU that drops what was asked for the longest ago.
`exclusive LRU` stands for the built-in tier.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench_host_admission import BLOCK_BYTES, GIB, SHAPE, agents, checked, once
from host_policies import EXCLUSIVE, Asked, ExclusiveLru, asked_for, evicted_to
from measure import RESULTS, Row, report

from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import CacheShape, HostTierKind
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import read_trace

SIZES_GIB = (20, 55, 100, 200, 400, 800)
CHAT_SLOTS = (40, 80, 150, 300, 600, 1200)
CHAT_SHAPE = SHAPE.model_copy(update={"tokens_per_block": 32, "blocks_primary": 150, "bytes_per_block": None})
REPLAYED = {
    "native, all": HostTierKind.BUILT_IN,
    "native, adaptive": HostTierKind.NATIVE,
    "connector, adaptive": HostTierKind.CONNECTOR,
}


class Case(NamedTuple):
    workload: Workload
    asked: list[Asked]
    prompt_tokens: int
    shape: CacheShape
    sizes: dict[str, int]  # slots

    @property
    def blocks(self) -> int:
        """Of all prompts."""
        return sum(len(asked.blocks) for asked in self.asked)


def case_of(workload: Workload, shape: CacheShape, sizes: dict[str, int]) -> Case:
    asked = asked_for(workload, shape.tokens_per_block, [0] * len(workload.requests))
    prompts = sum(request.input_length for request in workload.requests)
    return Case(workload, asked, prompts, shape, sizes)


def measure(case: Case, *, simulate: bool) -> Iterator[Row]:
    tokens = case.shape.tokens_per_block
    for size, slots in case.sizes.items():
        results = {name: replayed(case, kind, slots) for name, kind in REPLAYED.items()}
        if simulate:
            results |= {name: simulated(case, make(slots)) for name, make in EXCLUSIVE.items()}
        for name, (from_host, written, computed) in results.items():
            where = f"{case.workload.name}, {size}"
            yield Row(where, tokens, name, "host_hit_percent", once(100 * from_host / case.prompt_tokens))
            yield Row(where, tokens, name, "written_per_computed", once(written / computed))
            yield Row(where, tokens, name, "written_blocks", once(written))


def replayed(case: Case, kind: HostTierKind, slots: int) -> tuple[int, int, int]:
    """Tokens from the host tier, blocks written to it, and blocks computed."""
    outcome = checked(
        Replay(case.workload, case.shape.model_copy(update={"blocks_host": slots, "host_tier": kind})).run()
    )
    computed = case.blocks - outcome.blocks.primary - outcome.blocks.host
    return outcome.tokens.host, outcome.moved.blocks_to_host, computed


def simulated(case: Case, policy: ExclusiveLru) -> tuple[int, int, int]:
    """The same."""
    on_gpu, from_host, written = evicted_to(policy, case.asked, case.shape.blocks_primary)
    return case.shape.tokens_per_block * from_host, written, case.blocks - on_gpu - from_host


def options(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, action="append", default=[], metavar="FILE", help="may be given again")
    parser.add_argument("--requests", type=int, default=6000, help="of the traffic that is made here")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="300 requests and the smallest size")
    return parser


def workloads(arguments: argparse.Namespace) -> Iterator[Workload]:
    """The traffic that is made here, and then the traces."""
    yield agents(300 if arguments.quick else arguments.requests)
    for trace in arguments.trace:
        requests = read_trace(trace).requests
        yield Workload(trace.stem, requests, TokenBook(requests))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--replays", action="store_true", help="no simulations, which take minutes")
    arguments = parser.parse_args()
    few = 1 if arguments.quick else None
    server = {f"{gib} GiB": gib * GIB // BLOCK_BYTES for gib in SIZES_GIB[:few]}
    chat = {f"{slots} blocks": slots for slots in CHAT_SLOTS[:few]}
    made, *traces = (case_of(workload, SHAPE, server) for workload in workloads(arguments))
    chats = (case_of(generate("chat", seed=seed).workload, CHAT_SHAPE, chat) for seed in range(3))
    for case in (made, *chats, *traces):
        report("host_admission.csv", measure(case, simulate=not arguments.replays), arguments.results)


if __name__ == "__main__":
    main()
