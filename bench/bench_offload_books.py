"""Measures what the connector's scheduler side costs the executor's thread, by context length and number of requests.

Every request is admitted, computes its prompt in one step and then generates. Transfers end in the iteration after the
one that begins them, so that nothing but books is measured. No device is needed. Times are those that the thread had
a CPU, so that others on the machine count little.

admission_us         asking for matches, of one request whose prompt nobody has had; the ratio is to `reading_us`
reading_us           beside it: reading the request's tokens into an array, which whoever looks at them must do
hit_us               asking for matches where all of the prompt is in the host tier; likewise
prompt_block_us      a block of the prompt, when it has been computed: planned, and noted as arrived
block_us             a block that generating fills, likewise, all requests at once
iteration_us         an iteration of all requests in which no block is full
claim_us             100 blocks of a prompt claim slots of a full `adaptive` tier, of so many slots; with --claims alone
claim_max_us         the longest of these, of each round

A server that is not measured comes first: the first dozen blocks of a process cost three times as much as those later,
while the interpreter learns the code.
"""

import argparse
import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import RESULTS, Row, Summary, pin_to_one_core, report

from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import Ended, Link, Step
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings

BLOCK = 32
CONTEXTS = (1_024, 8_192, 32_768, 131_072)
REQUESTS = (1, 16, 64, 256)
WARM_UP = (4, 1_024, 8)  # requests, context, and how many such servers
PERIODS = 16  # blocks that each request fills while generating: the first ones come with the ends of its prompt
ROUNDS = 5
CLAIMS_SLOTS = (14_080, 200_000)  # 55 and 781 GiB of blocks of 4 MiB
CLAIM = 100  # blocks
RETURNING = 0.3  # of the prompts


@dataclass
class Request:
    request_id: int
    tokens: list[int]
    # The identity that the connector reads from a request, or it leaves the request alone.
    lora_task_id: None = None
    cache_salt_id: None = None
    py_multimodal_data: None = None
    sampling_config: Any = field(default_factory=lambda: SimpleNamespace(beam_width=1))

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)  # upstream's binding makes a list as well, of its own vector


@dataclass
class Data:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    priorities: None = None
    new_block_ids_by_layer_group: list[list[int]] = field(default_factory=list)


@dataclass
class Output:
    new_requests: list[Data] = field(default_factory=list)
    cached_requests: list[Data] = field(default_factory=list)


class Server:
    """Calls the scheduler side as upstream's connector manager does, and ends its transfers."""

    def __init__(self, requests: int, context: int) -> None:
        self.context = context
        self.link = Link()
        self.link.slots = 2 * requests * (context // BLOCK + PERIODS + 2)
        settings = OffloadSettings(host_bytes=1, log_every_requests=0)
        self.side = OffloadScheduler(settings, BLOCK, self.link, Switches(None))
        self.side.require_tier()  # as upstream does before it serves
        filling = list(range(1, context))
        self.requests = [Request(number, [number, *filling]) for number in range(requests)]
        self.blocks = 0

    def new_blocks(self, count: int) -> list[int]:
        self.blocks += count
        return list(range(self.blocks - count, self.blocks))

    def step(self, output: Output) -> float:
        """Microseconds that the scheduler side took."""
        begin = thread_time()
        step = self.side.build_connector_meta(output)
        took = thread_time() - begin
        self.end(step)
        return took * 1e6

    def end(self, step: Step) -> None:
        for store in step.stores:
            self.link.ledger.queue(store)
            self.link.ledger.end_here(Ended(store.number, ""))
        for ended in self.link.ledger.take_ended_here():
            self.link.ledger.end_everywhere(ended, has_scheduler=True)

    def admit(self, request: Request) -> float:
        begin = thread_time()
        self.side.get_num_new_matched_tokens(request, 0)
        return (thread_time() - begin) * 1e6

    def prefill(self) -> tuple[list[float], float]:
        """Times each admission, and each block that the prompts fill."""
        asked, told = [], []
        for request in self.requests:
            asked.append(self.admit(request))
            blocks = self.new_blocks(self.context // BLOCK + 1)
            self.side.update_state_after_alloc(request, [blocks])
            told.append(Data(request.request_id, list(request.tokens), blocks, 0, self.context))
        self.step(Output(new_requests=told))
        planned = self.step(Output(cached_requests=self.generating()))
        assert self.link.ledger.ended, "nothing was stored"
        noted = self.step(Output(cached_requests=self.generating()))
        return asked, (planned + noted) / (len(self.requests) * (self.context // BLOCK))

    def generating(self) -> list[Data]:
        """One more token of each, whose kernels the step before this one was given."""
        told = []
        for request in self.requests:
            position = len(request.tokens)
            request.tokens.append(position % 1000)
            blocks = self.new_blocks(1) if position % BLOCK == 0 else []
            told.append(Data(request.request_id, [position % 1000], blocks, position, 1))
        return told

    def generate(self) -> tuple[list[float], list[float]]:
        """Times each block that is filled, and each iteration without one."""
        filled, quiet = [], []
        took = [(len(self.requests[0].tokens) % BLOCK, self.step(Output(cached_requests=self.generating())))
                for _ in range(PERIODS * BLOCK)]  # fmt: skip
        usual = float(np.median([each for _, each in took]))
        for (at, planned), (_, noted) in pairwise(took):
            if at == 0:
                filled.append((planned + noted - 2 * usual) / len(self.requests))
            elif at > 1:
                quiet.append(planned)
        return filled, quiet


def reading_us(request: Request) -> float:
    begin = thread_time()
    np.array(request.get_tokens(0), np.int32)
    return (thread_time() - begin) * 1e6


def warm_up(requests: int, context: int, servers: int) -> None:
    for _ in range(servers):
        server = Server(requests, context)
        server.prefill()
        server.generate()


def measure(requests: int, context: int, rounds: int, name: str) -> Iterator[Row]:
    figures: dict[str, list[float]] = {}

    def note(metric: str, *values: float) -> None:
        figures.setdefault(metric, []).extend(values)

    for _ in range(rounds):
        server = Server(requests, context)
        gc.disable()
        asked, block = server.prefill()
        note("admission_us", *asked)
        note("prompt_block_us", block)
        filled, quiet = server.generate()
        note("block_us", *filled)
        note("iteration_us", *quiet)
        for number in range(min(requests, 8)):
            again = Request(10_000 + number, server.requests[number].tokens[: context + 1])
            note("reading_us", reading_us(again))
            note("hit_us", server.admit(again))
        gc.enable()
    read = Summary.of(figures["reading_us"]).median
    for metric, values in figures.items():
        ratio = Summary.of([value / read for value in values]) if metric in ("admission_us", "hit_us") else None
        yield Row(f"{requests} x {context // 1024}k", BLOCK, name, metric, Summary.of(values), ratio)


def claims(slots: int) -> list[float]:
    """Times claims of a tier that is full, in microseconds."""
    index, draws = TierIndex(slots, BLOCK, admission="adaptive"), random.Random(1)
    filling, seen, took = np.arange(BLOCK * CLAIM, dtype=np.int32), [0], list[float]()
    for number in range(1, 8 * slots // CLAIM):
        seen.append(draws.choice(seen[-200:]) if draws.random() < RETURNING else number)
        sequence = index.open()
        index.extend(sequence, filling + CLAIM * seen[-1])
        index.held(sequence)
        begin = thread_time()
        claim = index.claim(sequence, CLAIM)
        took.append((thread_time() - begin) * 1e6)
        assert claim is not None
        index.commit(claim.slots)
        index.close(sequence)
    return took[2 * slots // CLAIM :]


def measure_claims(slots: int, rounds: int, name: str) -> Iterator[Row]:
    took = [claims(slots) for _ in range(rounds)]
    workload = f"{CLAIM} of {slots}"
    yield Row(workload, BLOCK, name, "claim_us", Summary.of([each for one in took for each in one]))
    yield Row(workload, BLOCK, name, "claim_max_us", Summary.of([max(one) for one in took]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--requests", default=",".join(map(str, REQUESTS)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--name", default="trtllm-kvfix", help="what the rows say was measured")
    parser.add_argument("--print", action="store_true", help="print, and keep no rows")
    parser.add_argument("--quick", action="store_true", help="one round of 1k and 8k tokens")
    parser.add_argument("--claims", action="store_true", help="measure claims of a full tier, and nothing else")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.contexts, arguments.rounds = "1024,8192", 1
    pin_to_one_core()
    if arguments.claims:
        for slots in CLAIMS_SLOTS:
            rows = measure_claims(slots, arguments.rounds, arguments.name)
            show(rows) if arguments.print else report("offload_books.csv", rows, arguments.results)
        return
    warm_up(*WARM_UP)
    for context in map(int, arguments.contexts.split(",")):
        for requests in map(int, arguments.requests.split(",")):
            rows = measure(requests, context, arguments.rounds, arguments.name)
            show(rows) if arguments.print else report("offload_books.csv", rows, arguments.results)


def show(rows: Any) -> None:
    for row in rows:
        print(row.text(), flush=True)


if __name__ == "__main__":
    main()
