"""What the fixes cost an engine's iteration: the stand-in's loop with overlap, on a GPU that computes for so many
milliseconds a step.

iteration_us: from one forward step to the next, while all requests generate. Most of a fix's work hides behind the
device's; the fence's wait does not, since it also ends the overlap of host and device up to the input copies. The
host's share of an iteration is the stand-in's, less than a real server's: `host_us` is the iteration without any
computing. Every arm is a fresh server; arms take turns. Ratios are to the loop without fixes. Needs torch and a CUDA
GPU.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import REPOSITORY, RESULTS, Row, Summary, quiet_garbage_collector, report

from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixChoices, Settings

sys.path.insert(0, str(REPOSITORY))  # the stand-in lives among the tests
from tests.standin.fixture import upstream
from tests.standin.serving import Server

VARIANT = "C"
BATCHES = (8, 64, 256)
STEPS_MS = (0, 2, 10)
ROUNDS = 3
ITERATIONS = 60
LED_IN = 10  # prompts, and what is made by the first steps
TOKENS_PER_BLOCK = 4
PROMPT = 16
OFF, EVERYTHING = "off", "all"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch, one round")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    batches, rounds = (BATCHES[:1], 1) if options.quick else (BATCHES, ROUNDS)
    cycles_per_ms = spin_rate()
    with upstream(VARIANT, "torch"):
        import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
        arms = [OFF, *needed(), EVERYTHING]

        def rows() -> Iterator[Row]:
            for batch in batches:
                for step_ms in STEPS_MS:
                    yield from compared(batch, step_ms, round(step_ms * cycles_per_ms), arms, rounds)

        report("loop.csv", rows(), options.results)
    return 0


def compared(batch: int, step_ms: int, cycles: int, arms: Sequence[str], rounds: int) -> Iterator[Row]:
    taken: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(rounds):
        for arm in arms[:: 1 if number % 2 else -1]:
            with applied(arm), quiet_garbage_collector():
                taken[arm] += iterations(batch, cycles)
    base = float(np.median(taken[OFF]))
    name, metric = f"{VARIANT}-batch{batch}-step{step_ms}ms", "iteration_us" if cycles else "host_us"
    for arm, values in taken.items():
        ratio = Summary.of((np.array(values) / base).tolist())
        yield Row(name, TOKENS_PER_BLOCK, arm, metric, Summary.of(values), ratio)


def iterations(batch: int, cycles: int) -> list[float]:
    """Microseconds between forward steps."""
    tokens = PROMPT + ITERATIONS + LED_IN + 2
    cache = {"max_tokens": batch * (tokens + TOKENS_PER_BLOCK), "enable_block_reuse": False}
    server = Server({"max_batch_size": batch, "max_seq_len": tokens + TOKENS_PER_BLOCK, "kv_cache_config": cache})
    engine, begun = server.executor.model_engine, []
    forward = engine._forward_step

    def computing(*args: Any, **kwargs: Any) -> Any:
        begun.append(time.perf_counter_ns())
        result = forward(*args, **kwargs)
        if cycles:
            torch.cuda._sleep(cycles)
        return result

    engine._forward_step = computing
    server.serve([server.request(i, [i] * PROMPT, ITERATIONS + LED_IN) for i in range(batch)])
    spent_us = np.diff(begun) / 1e3
    return [float(value) for value in spent_us[LED_IN : LED_IN + ITERATIONS - 1]]


def needed() -> tuple[str, ...]:
    with applied(EVERYTHING) as applied_ids:
        return applied_ids


@contextmanager
def applied(arm: str) -> Iterator[tuple[str, ...]]:
    chosen = FixChoices.model_validate({name: "on" if name == arm else "off" for name in FIX_IDS})
    registry = Registry(ALL)
    settings = Settings() if arm == EVERYTHING else Settings(fixes=chosen)
    try:
        yield registry.apply(settings, Upstream(), at_last=True).applied
    finally:
        registry.revert()


def spin_rate() -> float:
    """Cycles of `torch.cuda._sleep` in a millisecond."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / float(begin.elapsed_time(end))


if __name__ == "__main__":
    raise SystemExit(main())
