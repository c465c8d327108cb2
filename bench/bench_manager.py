"""Measures what `kvfix.manager: native` costs in an iteration, against upstream's same statements over bound books.

Both sides run the statements of upstream's `prepare_resources`, `update_resources` and scheduling of 1.2, for requests
that generate, and for batches of prompts that arrive: short ones that nobody knows, and those of the workloads W4 and
W4s, of which three quarters are cached. A request is made as upstream makes it, and noted by us where ours serves:
that has a row of its own, and so has scheduling, which asks both what is cached. The other side is kvfix_bound, the
extension of the tests: it is declared as upstream's binding is, and its books are empty at the start. Rounds take
turns, so a machine that slows down for a while slows both. `make bound` builds it.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import REPOSITORY, RESULTS, Row, Summary, pin_to_one_core, report
from workloads import build

from trtllm_kvfix import native
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.constructors import noting
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.staging import on_stream

sys.path[:0] = [str(REPOSITORY), os.environ.get("KVFIX_BOUND") or str(REPOSITORY / "build" / "bound")]
TOKENS_PER_BLOCK = 32
LENGTH_MAX = 4096
LENGTH_MAX_OF_TRACES = 16_384
TRACES = ("W4", "W4s")
PROMPT = 128
ADMITTED = 64
ROUNDS = 9
ITERATIONS = 20
SIZES = (8, 32, 128, 256, 512, 1024)


class Side(NamedTuple):
    name: str
    impl: Any
    schedule: Callable[[Sequence[Any]], Any]
    request: Callable[..., Any]


class Arrivals(NamedTuple):
    """Microseconds of a request, by side."""

    made: dict[str, list[float]]
    scheduled: dict[str, list[float]]
    admitted: dict[str, list[float]]


def keywords(era: Any, sequences: int, stream: int, blocks: int, length_max: int) -> dict[str, Any]:
    return {
        "num_kv_heads_per_layer": [1],
        "tokens_per_block": TOKENS_PER_BLOCK,
        "blocks_per_window": {length_max: (blocks, 0)},
        "max_num_sequences": sequences,
        "max_beam_width": 1,
        "max_attention_window_vec": [length_max],
        "temp_attention_window_inputs": None,
        "dtype": era.DataType.HALF,
        "sink_token_length": 0,
        "stream": stream,
        "max_sequence_length": length_max,
        "enable_block_reuse": True,
    }


def sides(
    era: Any, sequences: int, stream: int, blocks: int | None = None, length_max: int = LENGTH_MAX
) -> tuple[Side, Side]:
    if blocks is None:
        blocks = sequences * LENGTH_MAX // TOKENS_PER_BLOCK // 4
    given = keywords(era, sequences, stream, blocks, length_max)
    bound = era.KVCacheManager(**given, size_per_head_per_layer=[1])
    bound.witness_record(False)
    capacity = era.CapacityScheduler(
        max_num_requests=sequences,
        capacity_scheduler_policy=era.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
        has_kv_cache_manager=True,
    )
    ours = NativeKvCache(**given, size_per_head=1)
    policy = scheduler_for(sequences, ours)
    assert policy is not None
    for impl in (bound, ours):
        impl.allocate_pools(False)
    return (
        Side("bound", bound, lambda active: capacity(active, bound, None), era.LlmRequest),
        Side("native", ours, policy.schedule_request, noted_class(era)),
    )


def noted_class(era: Any) -> Any:
    """The class of upstream's Python half of the request, as the overlay leaves it."""

    class Request(era.LlmRequest):  # type: ignore[misc]
        py_multimodal_data = None
        __init__ = noting(era.LlmRequest.__init__)

    return Request


def admit(impl: Any, requests: Sequence[Any]) -> None:
    impl.sync_transfer_manager_with_buffer_manager()
    for each in requests:
        if each.is_first_context_chunk:
            impl.add_sequence(each.request_id, each.prompt_len, 1, each)
    impl.refresh_blocks()


def iterate(side: Side, requests: Sequence[Any], table: Any) -> None:
    for _ in range(ITERATIONS):
        generate(side, requests, table)


def generate(side: Side, requests: Sequence[Any], table: Any) -> None:
    """One iteration in which everybody generates."""
    impl = side.impl
    side.schedule(requests)
    impl.sync_transfer_manager_with_buffer_manager()
    for each in requests:
        impl.add_token(each.request_id)
    impl.refresh_blocks()
    ids = [each.request_id for each in requests]
    impl.copy_batch_block_offsets(table, ids, 1, 0)


def made(era: Any, side: Side, first: int, prompts: Sequence[Sequence[int]], answer: int = 1) -> list[Any]:
    return [
        side.request(
            request_id=first + number,
            max_new_tokens=answer,
            input_tokens=prompt,
            sampling_config=era.SamplingConfig(),
            is_streaming=False,
        )
        for number, prompt in enumerate(prompts)
    ]


def unknown(count: int, first: int) -> list[list[int]]:
    """Prompts that nobody has sent."""
    return [[(first + number) * 131 + place for place in range(PROMPT)] for number in range(count)]


def generating(era: Any, side: Side, count: int) -> list[Any]:
    requests = made(era, side, 0, unknown(count, 0), answer=ROUNDS * ITERATIONS * 4)
    admit(side.impl, requests)
    for each in requests:
        each.move_to_next_context_chunk()
        each.state = era.LlmRequestState.GENERATION_IN_PROGRESS
        side.impl.store_context_blocks(each)
    return requests


def microseconds(call: Callable[[], None]) -> float:
    """Times this thread on its processor: other load on the machine does not count."""
    begin = time.thread_time()
    call()
    return (time.thread_time() - begin) * 1e6


def of_iterations(era: Any, count: int, stream: int) -> dict[str, list[float]]:
    table = np.zeros((1, count, 2, LENGTH_MAX // TOKENS_PER_BLOCK), np.int32)
    pair = [(side, generating(era, side, count)) for side in sides(era, count, stream)]
    found: dict[str, list[float]] = {side.name: [] for side, _ in pair}
    for number in range(ROUNDS + 1):
        for side, requests in pair:
            spent = microseconds(partial(iterate, side, requests, table))
            if number:  # the first warms up
                found[side.name].append(spent / ITERATIONS)
    return found


def of_admission(era: Any, stream: int) -> Arrivals:
    batches = [unknown(ADMITTED, number * ADMITTED) for number in range(ROUNDS + 1)]
    return arriving(era, sides(era, 4 * ADMITTED, stream), batches)


def of_trace(era: Any, stream: int, name: str) -> Arrivals:
    workload = build(name)
    blocks = -(-workload.tokens_primary // TOKENS_PER_BLOCK)
    pair = sides(era, 4 * ADMITTED, stream, blocks, LENGTH_MAX_OF_TRACES)
    batches = [[prompt.tolist() for prompt in wave.prompts] for wave in workload.waves[: ROUNDS + 1]]
    return arriving(era, pair, batches)


def arriving(era: Any, pair: tuple[Side, Side], batches: list[list[list[int]]]) -> Arrivals:
    """The first batch warms up, or brings the prefixes."""
    found = Arrivals(*[{side.name: list[float]() for side in pair} for _ in range(3)])
    for number, prompts in enumerate(batches):
        for side in pair:
            requests: list[Any] = []
            make = partial(made, era, side, number * 1000, prompts)
            arrive = microseconds(lambda make=make, into=requests: into.extend(make()))  # type: ignore[misc]
            for each in requests:
                each.state = era.LlmRequestState.CONTEXT_INIT
            schedule = microseconds(partial(side.schedule, requests))
            spent = microseconds(partial(admit, side.impl, requests))
            for each in requests:
                each.move_to_next_context_chunk()
                side.impl.store_context_blocks(each)
                side.impl.remove_sequence(each.request_id, each, False)
            if number:
                found.made[side.name].append(arrive / len(prompts))
                found.scheduled[side.name].append(schedule / len(prompts))
                found.admitted[side.name].append(spent / len(prompts))
    return found


def rows(workload: str, metric: str, found: dict[str, list[float]]) -> list[Row]:
    ratios = Summary.of([ours / theirs for ours, theirs in zip(found["native"], found["bound"], strict=True)])
    return [
        Row(workload, TOKENS_PER_BLOCK, name, metric, Summary.of(values), ratios if name == "native" else None)
        for name, values in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="two sizes")
    parser.add_argument("--arrivals", action="store_true", help="only prompts that arrive")
    arguments = parser.parse_args()
    kvfix_bound = import_module("kvfix_bound")  # built by `make bound`
    pin_to_one_core()
    device = native.open_device("cpu")
    stream = device.create_stream()
    found: list[Row] = []
    with on_stream(device, stream):
        for count in () if arguments.arrivals else SIZES[:2] if arguments.quick else SIZES:
            found += rows(f"gen-{count}", "iteration_us", of_iterations(kvfix_bound.S, count, stream))
        admissions = {f"admit-{ADMITTED}": of_admission(kvfix_bound.S, stream)}
        admissions |= {f"admit-{name}": of_trace(kvfix_bound.S, stream, name) for name in TRACES}
        for workload, arrivals in admissions.items():
            found += rows(workload, "make_us_per_request", arrivals.made)
            found += rows(workload, "schedule_us_per_request", arrivals.scheduled)
            found += rows(workload, "admit_us_per_request", arrivals.admitted)
    report("manager.csv", found, arguments.results)


if __name__ == "__main__":
    main()
