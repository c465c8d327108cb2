"""Compares policies by which a full host tier takes blocks, the connector's and others, at several sizes, on a trace
and on traffic that is made here.

host_hit_percent         prompt tokens that the host tier brought, of all of the half
written_per_computed     blocks stored, for each that the requests of the half computed

`connector, ...` and `built-in` are replays, as `trtllm-kvfix replay` runs them: an 8B model, 60 GiB of GPU memory. The
rest are candidates that were not built and limits that nobody can pass, over the same requests with the GPU hits of a
replay without a host tier. `prescient` knows what will come back, though not when; the bound knows both.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import host_policies as policies
import numpy as np
from host_policies import Tried
from measure import RESULTS, Row, Summary, report

from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.host_tier import Found, HostTier, PolicyTier, TierCounts
from trtllm_kvfix.tools.replay.outcome import CacheShape, ReplayOutcome
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TOKENS_PER_HASH_ID, TraceRequest, read_trace

GIB = 1 << 30
SIZES_GIB = (20, 55, 100, 200, 400)
BLOCK = 128
BLOCK_BYTES = 32 * 8 * 128 * 2 * 2 * BLOCK  # layers, KV heads, their size, keys and values, bytes of a number
SHAPE = CacheShape(
    tokens_per_block=BLOCK, blocks_primary=60 * GIB // BLOCK_BYTES, blocks_host=0, bytes_per_block=BLOCK_BYTES,
    max_batch_size=128, max_num_tokens=16384, tokens_per_iteration=1, iteration_ms=20,
)  # fmt: skip


class Replayed(NamedTuple):
    on_gpu: list[int]  # tokens of each request
    from_host: list[int]
    stored: list[int]  # blocks, counted at the request that was admitted last


class Watched:
    """A tier, or none, and what each request found."""

    def __init__(self, tier: HostTier | None, requests: int) -> None:
        self._tier = tier
        self.seen = Replayed([0] * requests, [0] * requests, [0] * requests)
        self._newest = 0

    def attach(self, manager: BlockManager) -> None:
        if self._tier is not None:
            self._tier.attach(manager)

    def find(self, index: int, tokens_found: int) -> Found:
        found = Found() if self._tier is None else self._tier.find(index, tokens_found)
        self.seen.on_gpu[index], self.seen.from_host[index] = tokens_found, found.tokens
        self._newest = index
        return found

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        self._counting(lambda tier: tier.step(running))

    def finish(self, indices: Sequence[int]) -> None:
        self._counting(lambda tier: tier.finish(indices))

    def counted(self) -> TierCounts:
        return TierCounts(0, 0, 0) if self._tier is None else self._tier.counted()

    def _counting(self, call: Callable[[HostTier], object]) -> None:
        if self._tier is not None:
            before = self._tier.counted().stored
            call(self._tier)
            self.seen.stored[self._newest] += self._tier.counted().stored - before


def replayed(workload: Workload, blocks_host: int, admission: str) -> Replayed:
    known = Replay(workload, SHAPE).known
    tier = PolicyTier(blocks_host, BLOCK, known, admission) if blocks_host else None
    watched = Watched(tier, len(workload.requests))
    checked(Replay(workload, SHAPE, tier=watched).run())
    return watched.seen


def built_in(workload: Workload, blocks_host: int) -> ReplayOutcome:
    return checked(Replay(workload, SHAPE.model_copy(update={"blocks_host": blocks_host})).run())


def checked(outcome: ReplayOutcome) -> ReplayOutcome:
    if not outcome.kept_its_promise or outcome.partial:
        raise SystemExit("the replay broke a promise; what it counted makes no sense")
    return outcome


class Traffic:
    """Requests, what the GPU has of each, and shares of each half."""

    def __init__(self, name: str, workload: Workload) -> None:
        self.name, self.workload = name, workload
        self.middle = len(workload.requests) // 2
        self.on_gpu = replayed(workload, 0, "all").on_gpu
        self.asked = policies.asked_for(workload, BLOCK, self.on_gpu)
        self.prompts = [request.input_length for request in workload.requests]
        self.computed = [max(len(asked.blocks) - asked.on_gpu, 0) for asked in self.asked]

    def halves(self, values: Sequence[int]) -> tuple[int, int]:
        return sum(values[: self.middle]), sum(values[self.middle :])

    def rows(self, size_gib: int, name: str, tokens: Sequence[int], stored: Sequence[int]) -> Iterator[Row]:
        found, prompts, written = self.halves(tokens), self.halves(self.prompts), self.halves(stored)
        computed = [max(c - f / BLOCK, 1) for c, f in zip(self.halves(self.computed), found, strict=True)]
        for half, at in (("first half", 0), ("second half", 1)):
            where = f"{self.name}, {half}, {size_gib} GiB"
            yield Row(where, BLOCK, name, "host_hit_percent", once(100 * found[at] / prompts[at]))
            yield Row(where, BLOCK, name, "written_per_computed", once(written[at] / computed[at]))

    def of_tried(self, size_gib: int, name: str, result: Tried) -> Iterator[Row]:
        return self.rows(size_gib, name, [BLOCK * blocks for blocks in result.blocks_found], result.blocks_stored)


def once(value: float) -> Summary:
    return Summary(value, value, value, 1)


def measure(traffic: Traffic, size_gib: int) -> Iterator[Row]:
    slots = size_gib * GIB // BLOCK_BYTES
    yield from measure_built_in(traffic, size_gib, slots)
    for admission in ("all", "adaptive"):
        seen = replayed(traffic.workload, slots, admission)
        yield from traffic.rows(size_gib, f"connector, {admission}", seen.from_host, seen.stored)
    for name, make in policies.CANDIDATES.items():
        yield from traffic.of_tried(size_gib, name, policies.tried(make(slots), traffic.asked))
    prescient = policies.Prescient(slots, policies.come_back(traffic.asked))
    yield from traffic.of_tried(size_gib, "prescient", policies.tried(prescient, traffic.asked))
    yield from traffic.of_tried(size_gib, "bound", policies.bound(slots, traffic.asked))


def measure_built_in(traffic: Traffic, size_gib: int, slots: int) -> Iterator[Row]:
    """It does not say which request found what, so the second half is what the first adds to all."""
    requests = traffic.workload.requests[: traffic.middle]
    first = built_in(Workload("first half", requests, TokenBook(requests)), slots)
    both = built_in(traffic.workload, slots)
    tokens, stored = [0] * len(traffic.prompts), [0] * len(traffic.prompts)
    tokens[0], tokens[-1] = first.tokens.host, both.tokens.host - first.tokens.host
    stored[0] = first.moved.blocks_to_host
    stored[-1] = both.moved.blocks_to_host - stored[0]
    return traffic.rows(size_gib, "built-in", tokens, stored)


def agents(requests: int, seed: int = 0) -> Workload:
    """Sessions that go on from where they were, one of 150 at a time, and between them long prompts that come once."""
    random = np.random.Generator(np.random.PCG64(seed))
    made: list[TraceRequest] = []
    new_ids = iter(range(1 << 40))

    def say(ids: int) -> list[int]:
        return [next(new_ids) for _ in range(ids)]

    def ask(ids: list[int]) -> None:
        length = len(ids) * TOKENS_PER_HASH_ID - int(random.integers(0, TOKENS_PER_HASH_ID))
        answer = int(random.integers(16, 512))
        made.append(TraceRequest(len(made) + 1, length, answer, 300.0 * len(made), hash_ids=np.array(ids, np.int64)))

    tools = [say(4) for _ in range(8)]
    sessions: list[tuple[list[int], int]] = []
    while len(made) < requests:
        if random.random() < 0.15:
            ask(say(int(random.integers(20, 60))))
            continue
        if len(sessions) < 150:
            sessions.append(([*tools[int(random.integers(0, 8))], *say(int(random.integers(4, 40)))], 0))
        at = int(random.integers(0, len(sessions)))
        ids, turns = sessions[at]
        ids = ids + say(int(random.integers(1, 4)))
        ask(ids)
        sessions[at] = ids, turns + 1
        if random.random() < 0.1:
            sessions.pop(at)
    return Workload("agents", made, TokenBook(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="JSON lines, as trtllm-kvfix replay takes them")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_GIB)), metavar="GIB,...")
    parser.add_argument("--requests", type=int, default=6000, help="of the traffic that is made here; 0 for none")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="300 requests and two sizes")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.requests = "20,55", 300
    kinds = []
    if arguments.trace is not None:
        requests = read_trace(arguments.trace).requests
        kinds.append(Workload(arguments.trace.stem, requests, TokenBook(requests)))
    if arguments.requests:
        kinds.append(agents(arguments.requests))
    for workload in kinds:
        traffic = Traffic(workload.name, workload)
        for size_gib in map(int, arguments.sizes.split(",")):
            report("host_admission.csv", measure(traffic, size_gib), arguments.results)


if __name__ == "__main__":
    main()
