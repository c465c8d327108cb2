"""Measures what `kvfix.manager: native` costs in an iteration, against upstream's same statements over bound books.

Both sides run the statements of upstream's `prepare_resources`, `update_resources` and scheduling of 1.2, for requests
that generate, and for batches of prompts that arrive: short ones that nobody knows, and those of the workloads W4 and
W4s, of which three quarters are cached. A request is made as upstream makes it, and noted by us where ours serves:
that has a row of its own, and so have scheduling, which asks both what is cached, and the end, which stores the prompt.
Both sides make upstream's Python half of it. The other side is kvfix_bound, the
extension of the tests: it is declared as upstream's binding is, and its books are empty at the start. Rounds take
turns, so a machine that slows down for a while slows both. `make bound` builds it.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import COLUMNS, REPOSITORY, RESULTS, append, pin_to_one_core
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
PROMPTS = (PROMPT, 512, 4096)  # lengths of those that nobody knows
ADMITTED = 64
ROUNDS = 9  # of the traces, as many as they have batches
BATCHES = 40
ITERATIONS = 600
WARM_UP = 20
PERCENTILES = (10, 20, 50, 80, 90, 99)
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
    ended: dict[str, list[float]]
    in_all: dict[str, list[float]]


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
        Side("bound", bound, lambda active: capacity(active, bound, None), python_half(era)),
        Side("native", ours, policy.schedule_request, noted_class(era)),
    )


def python_half(era: Any) -> Any:
    """Upstream's class of requests derives from the bound one, and has a constructor of its own."""

    class Request(era.LlmRequest):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.py_multimodal_data = None

    return Request


def noted_class(era: Any) -> Any:
    """The same, as the overlay leaves it."""
    made = python_half(era)
    made.__init__ = noting(made.__init__)
    return made


def admit(impl: Any, requests: Sequence[Any]) -> None:
    impl.sync_transfer_manager_with_buffer_manager()
    for each in requests:
        if each.is_first_context_chunk:
            impl.add_sequence(each.request_id, each.prompt_len, 1, each)
    impl.refresh_blocks()


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


def unknown(count: int, first: int, length: int = PROMPT) -> list[list[int]]:
    """Prompts that nobody has sent."""
    return [[(first + number) * 131 + place for place in range(length)] for number in range(count)]


def generating(era: Any, side: Side, count: int) -> list[Any]:
    requests = made(era, side, 0, unknown(count, 0), answer=2 * ITERATIONS)
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
    of_the_clock = np.median([microseconds(lambda: None) for _ in range(1000)])
    for number in range(ITERATIONS):
        for side, requests in pair:
            spent = microseconds(partial(generate, side, requests, table))
            if number >= WARM_UP:
                found[side.name].append(float(spent - of_the_clock))
    return found


def of_unknown(era: Any, stream: int, length: int) -> Arrivals:
    batches = (unknown(ADMITTED, number * ADMITTED, length) for number in range(BATCHES + 1))
    blocks = 4 * ADMITTED * length // TOKENS_PER_BLOCK
    return arriving(era, sides(era, 4 * ADMITTED, stream, blocks, LENGTH_MAX_OF_TRACES), batches)


def of_trace(era: Any, stream: int, name: str) -> Arrivals:
    workload = build(name)
    blocks = -(-workload.tokens_primary // TOKENS_PER_BLOCK)
    pair = sides(era, 4 * ADMITTED, stream, blocks, LENGTH_MAX_OF_TRACES)
    return arriving(era, pair, ([prompt.tolist() for prompt in wave.prompts] for wave in workload.waves[: ROUNDS + 1]))


def arriving(era: Any, pair: tuple[Side, Side], batches: Iterable[list[list[int]]]) -> Arrivals:
    """The first batch warms up, or brings the prefixes."""
    found = Arrivals(*[{side.name: list[float]() for side in pair} for _ in range(5)])
    for number, prompts in enumerate(batches):
        for side in pair:
            spent = [each / len(prompts) for each in phases(era, side, number * 1000, prompts)]
            for phase, value in zip(found, [*spent, sum(spent)], strict=True) if number else ():
                phase[side.name].append(value)
    return found


def phases(era: Any, side: Side, first: int, prompts: list[list[int]]) -> list[float]:
    """Microseconds of a batch: to make it, to schedule, to admit and to end it."""
    requests: list[Any] = []
    spent = [microseconds(lambda: requests.extend(made(era, side, first, prompts)))]
    for each in requests:
        each.state = era.LlmRequestState.CONTEXT_INIT
    spent.append(microseconds(partial(side.schedule, requests)))
    spent.append(microseconds(partial(admit, side.impl, requests)))
    for each in requests:
        each.move_to_next_context_chunk()
    return [*spent, microseconds(partial(end, side.impl, requests))]


def end(impl: Any, requests: Sequence[Any]) -> None:
    for each in requests:
        impl.store_context_blocks(each)
        impl.remove_sequence(each.request_id, each, False)


def rows(workload: str, metric: str, found: dict[str, list[float]]) -> Iterator[list[Any]]:
    """Of each side; the native one's with the median of the ratios to the other's measurement of the same turn."""
    ratio = np.median(np.divide(found["native"], found["bound"]))
    for name, values in found.items():
        parts = [f"{each:.6g}" for each in np.percentile(values, PERCENTILES)]
        ratio_text = f"{ratio:.4g}" if name == "native" else ""
        print(
            f"{workload:<12} {name:<8} {metric:<26} {' '.join(f'{each:>8}' for each in parts)}  {ratio_text}",
            flush=True,
        )
        p10, p20, median, p80, p90, p99 = parts
        yield [workload, TOKENS_PER_BLOCK, name, metric, median, p20, p80, ratio_text, len(values), p10, p90, p99]


def measured(kvfix_bound: Any, stream: int, arguments: argparse.Namespace) -> Iterator[list[Any]]:
    era = kvfix_bound.S
    for count in () if arguments.arrivals else SIZES[:2] if arguments.quick else SIZES:
        yield from rows(f"gen-{count}", "iteration_us", of_iterations(era, count, stream))
    admissions = {f"admit-{length}": partial(of_unknown, era, stream, length) for length in PROMPTS}
    admissions |= {f"admit-{name}": partial(of_trace, era, stream, name) for name in TRACES}
    for workload, measure in admissions.items():
        arrivals = measure()
        yield from rows(workload, "make_us_per_request", arrivals.made)
        yield from rows(workload, "schedule_us_per_request", arrivals.scheduled)
        yield from rows(workload, "admit_us_per_request", arrivals.admitted)
        yield from rows(workload, "end_us_per_request", arrivals.ended)
        yield from rows(workload, "request_us", arrivals.in_all)


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
    with on_stream(device, stream):
        append(
            arguments.results / "manager.csv", (*COLUMNS, "p10", "p90", "p99"), measured(kvfix_bound, stream, arguments)
        )


if __name__ == "__main__":
    main()
