"""What the fixes cost an engine's iteration: the stand-in's loop with overlap, on a GPU that computes for so many
milliseconds a step.

iteration_us: from one forward step to the next, while all requests generate. Most of a fix's work hides behind the
device's; the fence's wait does not, since it also ends the overlap of host and device up to the input copies. The
host's share of an iteration is the stand-in's, less than a real server's: `host_us` is the iteration without any
computing. Arms take turns within one run of one server. Ratios are to the loop without fixes. Needs torch and a CUDA
GPU.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
SEGMENTS = 8  # of each arm
SEGMENT = 10  # iterations with one arm
LEFT_OUT = 3  # of each segment: the change itself, and what the step before has left
LED_IN = 10  # prompts, and what is made by the first steps
TOKENS_PER_BLOCK = 4
PROMPT = 16
OFF, EVERYTHING = "off", "all"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch, one round")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    batches, segments = (BATCHES[:1], 2) if options.quick else (BATCHES, SEGMENTS)
    cycles_per_ms = spin_rate()
    with upstream(VARIANT, "torch"):
        import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
        arms = [OFF, *needed(), EVERYTHING]

        def rows() -> Iterator[Row]:
            for batch in batches:
                for step_ms in STEPS_MS:
                    yield from compared(batch, step_ms, round(step_ms * cycles_per_ms), arms, segments)

        report("loop.csv", rows(), options.results)
    return 0


def compared(batch: int, step_ms: int, cycles: int, arms: Sequence[str], segments: int) -> Iterator[Row]:
    with quiet_garbage_collector():
        taken = iterations(batch, cycles, arms, segments)
    base = float(np.median(taken[OFF]))
    name, metric = f"{VARIANT}-batch{batch}-step{step_ms}ms", "iteration_us" if cycles else "host_us"
    for arm, values in taken.items():
        ratio = Summary.of((np.array(values) / base).tolist())
        yield Row(name, TOKENS_PER_BLOCK, arm, metric, Summary.of(values), ratio)


def iterations(batch: int, cycles: int, arms: Sequence[str], segments: int) -> dict[str, list[float]]:
    """Microseconds between forward steps of one server, whose arm changes while it runs."""
    steps = LED_IN + segments * len(arms) * SEGMENT
    tokens = PROMPT + steps + TOKENS_PER_BLOCK
    cache = {"max_tokens": batch * (tokens + TOKENS_PER_BLOCK), "enable_block_reuse": False}
    server = Server({"max_batch_size": batch, "max_seq_len": tokens, "kv_cache_config": cache}, response_s_max=120)
    turns = Turns(arms)
    begun: list[int] = []
    engine = server.executor.model_engine
    forward = engine._forward_step

    def computing(*args: Any, **kwargs: Any) -> Any:
        step = len(begun) - LED_IN
        if step >= 0 and step % SEGMENT == 0:
            turns.next()
        begun.append(time.perf_counter_ns())
        result = forward(*args, **kwargs)
        if cycles:
            torch.cuda._sleep(cycles)
        return result

    engine._forward_step = computing
    try:
        server.serve([server.request(i, [i] * PROMPT, steps) for i in range(batch)])
    finally:
        turns.close()
    return turns.sort(np.diff(begun[LED_IN:]) / 1e3)


class Turns:
    """The arms in turn, each applied in the middle of the loop; every second round goes backwards."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._order = [*arms, *reversed(arms)]
        self._taken: list[str] = []
        self._now = ExitStack()

    def next(self) -> None:
        self._now.close()
        arm = self._order[len(self._taken) % len(self._order)]
        self._taken.append(arm)
        self._now.enter_context(applied(arm))

    def close(self) -> None:
        self._now.close()

    def sort(self, spent_us: Any) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {}
        for index, arm in enumerate(self._taken):
            mine = spent_us[index * SEGMENT + LEFT_OUT : (index + 1) * SEGMENT - 1]
            taken.setdefault(arm, []).extend(float(value) for value in mine)
        return taken


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
