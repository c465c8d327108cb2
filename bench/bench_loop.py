"""Measures what the fixes cost an engine's iteration: the stand-in's loop with overlap, on a GPU that computes for so
many milliseconds a step.

iteration_us: from one forward step to the next, while all requests generate. Most of a fix's work hides behind the
device's; a wait does not. That of the input-copy fence ends the overlap of host and device up to the input copies, and
that of graph-inputs up to the end of the graph, which holds the whole step here. The host's share of an iteration is
the stand-in's, less than a real server's: `host_us` is the iteration without any computing, and `cpu_us` what the
loop's thread runs in it: without its waits for the GIL, which vary most, and with those for the device, in which the
driver spins. Arms take turns within one run of one server. Ratios are to the loop without fixes. `added_us` and
`added_cpu_us` are the median difference between a turn with the fix and the turns without fixes before and after it, so
a machine that becomes slower or faster meanwhile does not change them.

Variant C has most fixes. B has batched-admission, whose work lies in steps that admit (`admit_cpu_us` of
bench_arrivals.py). D has graph-inputs, with LoRA on experts in a CUDA graph. Needs torch and a CUDA GPU; `--device cpu`
takes the host's share alone, on the simulated device.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import REPOSITORY, RESULTS, Row, Summary, quiet_garbage_collector, report

from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixChoices, Settings

sys.path.insert(0, str(REPOSITORY))  # the stand-in lives among the tests
from tests.standin.fixture import upstream
from tests.standin.serving import Server

BATCHES = (8, 64, 256)
STEPS_MS = (0, 2, 10)
ROUNDS = 4  # through all arms
# One after another where nothing computes: fixes cost less there than servers differ. A small batch is soon served.
HOST_SERVERS = {8: 12, 64: 6, 256: 3}
TURN = 24  # iterations with one arm
LEFT_OUT = 10  # of each turn: the change itself, and what CPython takes to adapt to the changed classes
LED_IN = 10  # prompts, and what is made by the first steps
TOKENS_PER_BLOCK = 4
PROMPT = 16
OFF, EVERYTHING = "off", "all"
Taken = list[tuple[str, Any]]  # turns in their order: the arm, and the microseconds of each iteration
CLOCKS = {"host_us": time.perf_counter_ns, "cpu_us": time.thread_time_ns}
ADDED = {"host_us": "added_us", "iteration_us": "added_us", "cpu_us": "added_cpu_us"}


class Loop(NamedTuple):
    """A server of the stand-in, and which fixes are compared in it; none: all that its variant needs."""

    variant: str
    fixes: tuple[str, ...] = ()
    has_lora: bool = False  # on experts, whose tables a CUDA graph reads

    @property
    def name(self) -> str:
        return f"{self.variant}-lora" if self.has_lora else self.variant

    def arms(self) -> list[str]:
        return [OFF, *self.fixes] if self.fixes else [OFF, *needed(), EVERYTHING]


LOOPS = (Loop("C"), Loop("B", ("batched-admission",)), Loop("D", ("graph-inputs",), has_lora=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch, one round")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--device", choices=("cpu", "torch"), default="torch")
    names = [loop.name for loop in LOOPS]
    parser.add_argument("--loops", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=BATCHES, help="default: all")
    parser.add_argument("--steps-ms", nargs="+", type=int, choices=STEPS_MS, default=STEPS_MS, help="default: all")
    parser.add_argument("--host-servers", type=int, default=1, metavar="TIMES", help="so many times as many")
    options = parser.parse_args()
    batches, rounds = (BATCHES[:1], 1) if options.quick else (options.batches, ROUNDS)
    steps_ms, cycles_per_ms = (options.steps_ms, spin_rate()) if options.device == "torch" else (STEPS_MS[:1], 0.0)

    def rows() -> Iterator[Row]:
        for loop in (each for each in LOOPS if each.name in options.loops):
            with upstream(loop.variant, options.device):
                import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
                arms = loop.arms()
                for batch in batches:
                    for step_ms in steps_ms:
                        cycles = round(step_ms * cycles_per_ms)
                        servers = 1 if cycles else HOST_SERVERS[batch] * options.host_servers
                        taken = [iterations(loop, batch, cycles, Turns(arms, rounds)) for _ in range(servers)]
                        yield from compared(f"{loop.name}-batch{batch}-step{step_ms}ms", taken, arms, idle=not cycles)

    report("loop.csv", rows(), options.results)
    return 0


def compared(name: str, servers: Sequence[dict[str, Taken]], arms: Sequence[str], *, idle: bool) -> Iterator[Row]:
    for clock, metric in zip(CLOCKS, CLOCKS, strict=True) if idle else (("host_us", "iteration_us"),):
        taken = [server[clock] for server in servers]
        values = {arm: np.concatenate([us for turns in taken for of, us in turns if of == arm]) for arm in arms}
        base = float(np.median(values[OFF]))
        for arm in arms:
            ratios = Summary.of((values[arm] / base).tolist())
            yield Row(name, TOKENS_PER_BLOCK, arm, metric, Summary.of(values[arm].tolist()), ratios)
            if arm != OFF:
                added = [us for turns in taken for us in added_by(arm, turns)]
                yield Row(name, TOKENS_PER_BLOCK, arm, ADDED[metric], Summary.of(added))


def added_by(arm: str, turns: Taken) -> Iterator[float]:
    """A turn beside those without fixes before and after it."""
    middles = [float(np.median(us)) for _, us in turns]
    for at in range(1, len(turns) - 1):
        if turns[at][0] == arm:
            yield middles[at] - (middles[at - 1] + middles[at + 1]) / 2


def iterations(
    loop: Loop, batch: int, cycles: int, turns: "Turns", clocks: Mapping[str, Callable[[], int]] = CLOCKS
) -> dict[str, Taken]:
    """Microseconds between forward steps of one server, whose arm changes while it runs, by each clock."""
    measured = len(turns.order) * turns.length
    steps = LED_IN + measured
    tokens = PROMPT + steps + TOKENS_PER_BLOCK
    cache = {"max_tokens": batch * (tokens + TOKENS_PER_BLOCK), "enable_block_reuse": False}
    args: dict[str, Any] = {"max_batch_size": batch, "max_seq_len": tokens, "kv_cache_config": cache}
    args["max_num_tokens"] = batch * PROMPT  # all prompts in one step: from then on every step has the whole batch
    args |= {"lora_config": {"max_loras": batch}} if loop.has_lora else {}
    server = Server(args, response_s_max=120)
    begun: dict[str, list[int]] = {metric: [] for metric in clocks}
    sizes: list[int] = []  # of the batches
    engine = server.executor.model_engine
    forward = engine._forward_step  # no fix replaces it

    def timed(inputs: dict[str, Any], attn_metadata: Any) -> Any:
        step = len(sizes) - LED_IN
        if step >= 0 and step % turns.length == 0:
            turns.next()
        sizes.append(len(attn_metadata.request_ids))
        for metric, clock in clocks.items():
            begun[metric].append(clock())
        return forward(inputs, attn_metadata)

    engine._forward_step = timed
    if cycles:
        make_it_compute(engine, cycles, in_graph=loop.has_lora)
    try:
        with quiet_garbage_collector():
            server.serve([request(server, loop, number, steps) for number in range(batch)])
    finally:
        turns.close()
    smallest = min(sizes[LED_IN : LED_IN + measured])
    if smallest != batch:
        raise RuntimeError(f"a step of {loop.name} had {smallest} requests, not {batch}, so its rows would mislead")
    whole = slice(LED_IN, LED_IN + measured)
    return {metric: turns.sort(np.diff(times[whole]) / 1e3) for metric, times in begun.items()}


def request(server: Server, loop: Loop, number: int, steps: int) -> Any:
    if not loop.has_lora:
        return server.request(number, [number] * PROMPT, steps)
    # A step with a context has no graph, so the prompt is computed elsewhere.
    elsewhere = server.requests.LlmRequestState.DISAGG_GENERATION_INIT
    return server.request(number, [number] * PROMPT, steps, lora_task_id=number, state=elsewhere)


def make_it_compute(engine: Any, cycles: int, *, in_graph: bool) -> None:
    """In a graph behind the copies of its tables, else behind what the step enqueues."""
    import torch  # noqa: PLC0415  the simulated device does without

    owner, name = (engine.experts, "forward") if in_graph else (engine, "_forward_step")
    enqueue = getattr(owner, name)

    def computing(*args: Any, **kwargs: Any) -> Any:
        result = enqueue(*args, **kwargs)
        torch.cuda._sleep(cycles)
        return result

    setattr(owner, name, computing)


class Turns:
    """The arms in turn, each applied in the middle of the loop, and the loop without fixes before and after each."""

    def __init__(
        self,
        arms: Sequence[str],
        rounds: int,
        apply: "Callable[[str], AbstractContextManager[Any]] | None" = None,
        *,
        length: int = TURN,
        left_out: int = LEFT_OUT,
    ) -> None:
        fixed = [arm for arm in arms if arm != OFF]
        back_and_forth = [arm for number in range(rounds) for arm in (fixed if number % 2 == 0 else reversed(fixed))]
        self.order = [OFF, *(arm for each in back_and_forth for arm in (each, OFF))]
        self.length = length  # in iterations
        self._left_out = left_out
        self._apply = apply or applied
        self._left = iter(self.order)
        self._now = ExitStack()

    def next(self) -> None:
        self._now.close()
        arm = next(self._left, OFF)  # requests go on a little behind the last turn
        self._now.enter_context(self._apply(arm))

    def close(self) -> None:
        self._now.close()

    def sort(self, spent_us: Any) -> Taken:
        begins = range(0, len(self.order) * self.length, self.length)
        taken = [spent_us[begin + self._left_out : begin + self.length - 1] for begin in begins]
        return list(zip(self.order, taken, strict=True))


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
    import torch  # noqa: PLC0415  the simulated device does without

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
