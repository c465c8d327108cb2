"""Measures where the time of a fix goes in a step of the stand-in's loop, at a batch of 8.

Every seam that a fix replaces has a clock before and behind the replacement, and one before and behind upstream's own
code inside of it. `SEAM_own_us` is the difference: what the replacement takes beside upstream's code. `SEAM_us` is all
of it. What the clocks themselves take is the arm `clocks`, which has all of them and no fix; it is subtracted from the
own times of the others. `fence_wait_us` and `replay_wait_us` are the waits for the device that the fixes count.

V1's copies are made in the middle of upstream's method, so `copy_batch_block_offsets_own_us` is without them. What that
fix adds is its `copy_batch_block_offsets_us` less that of `clocks`.

Of the arms for V1, `staged-offsets-v1` is the fix, `v1_snapshot` and `v1_early_copy` are its ways of shipping.
`driver_calls` makes a snapshot's two calls to the driver and nothing else, each with a clock of its own. `racy_twice`
and `v1_twice` make each call twice in a row: `again_us` is the second one, whose code and data are in the caches.
`fence_asks` records and asks whether inputs have been read, and never waits.

Needs torch and a CUDA GPU; `--device cpu` takes the host's share alone, on the simulated device.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from bench_loop import CLOCKS, LOOPS, OFF, TOKENS_PER_BLOCK, Loop, Taken, Turns, added_by, iterations, spin_rate
from measure import RESULTS, Row, Summary, report

from tests.standin.fixture import upstream
from trtllm_kvfix import native
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fix import Replacement
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixSettings, StagingMode
from trtllm_kvfix.staging.place import stream_of_torch

BATCH = 8
TABLE_WIDTH = 2 * 1024  # both planes of a row, more than the loops fill
TURN, LEFT_OUT = 60, 20  # iterations
V1, FENCE = "staged-offsets-v1", "input-copy-fence"
FIXES = {"C": (V1, FENCE, "token-budget", "concurrent-pins"), "D": ("graph-inputs",)}
CLOCKS_ALONE = "clocks"
COUNTED = {"fence_wait_us": counters.fence_wait_seconds, "replay_wait_us": counters.replay_wait_seconds}

Replacements = Sequence[Replacement]


class SeamClocks:
    """Nanoseconds since the beginning, by seam. The loop's thread alone comes here."""

    def __init__(self) -> None:
        self.whole: defaultdict[str, int] = defaultdict(int)
        self.inner: defaultdict[str, int] = defaultdict(int)

    def around(self, replacement: Replacement) -> Replacement:
        name = replacement.seam.path.rpartition(".")[2].strip("_")

        def make(original: Any) -> Any:
            return self.timed(self.whole, name, replacement.make(self.timed(self.inner, name, original)))

        return Replacement(replacement.seam, make)

    def timed(self, sums: defaultdict[str, int], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                sums[name] += time.perf_counter_ns() - begin

        return clocked

    def twice(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def made(original: Any) -> Any:
            call = make(original)
            again = self.timed(self.whole, "again", call)

            def copy_batch_block_offsets(*args: Any) -> Any:
                call(*args)
                return again(*args)

            return copy_batch_block_offsets

        return made


class DriverCalls:
    """A tensor for which every copy is a snapshot's calls to the driver, which bring nothing that is needed."""

    def __init__(self, clocks: SeamClocks) -> None:
        self._device = device = native.open_device("cuda")
        self._event, self._stream = device.create_event(), partial(stream_of_torch(), 0)
        self._table, self._target = (
            device.pinned([BATCH, TABLE_WIDTH], "int32"),
            device.empty([BATCH, TABLE_WIDTH], "int32"),
        )
        self._copy = clocks.timed(clocks.whole, "driver_copy", device.copy)
        self._record = clocks.timed(clocks.whole, "driver_record", device.record)

    def __getitem__(self, _index: Any) -> "DriverCalls":
        return self

    def copy_(self, source: Any, non_blocking: bool = False) -> None:
        del non_blocking
        stream = self._stream()
        nbytes = min(source.numel(), BATCH * TABLE_WIDTH) * 4
        self._copy(self._target.address, self._table.address, nbytes, stream)
        self._record(self._event, stream)


def arms_of(loop: Loop, clocks: SeamClocks, *, on_gpu: bool) -> dict[str, Replacements]:
    """What each arm puts into upstream."""
    up, fixes = Upstream(), {fix.id: fix for fix in ALL}
    made: dict[str, Replacements] = {
        name: list(fixes[name].replacements(up, FixSettings())) for name in FIXES[loop.variant]
    }
    own_code = [Replacement(each.seam, lambda original: original) for every in made.values() for each in every]
    alone = list({each.seam: each for each in own_code if is_slow(each)}.values())
    if loop.variant == "C":
        asks = fixes[FENCE].counting_replacements
        assert asks is not None
        made["fence_asks"] = asks(up, FixSettings())
        modes: tuple[StagingMode, ...] = ("snapshot", "early_copy") if on_gpu else ("snapshot",)
        made |= {f"v1_{mode}": fixes[V1].replacements(up, FixSettings(staging_mode=mode)) for mode in modes}
        (copy,) = fixes[V1].replacements(up, FixSettings(staging_slots=8))
        made["v1_twice"] = [Replacement(copy.seam, clocks.twice(copy.make))]
        made["racy_twice"] = [Replacement(copy.seam, clocks.twice(lambda original: original))]
        if on_gpu:
            made["driver_calls"] = [Replacement(copy.seam, partial(shipping_to, DriverCalls(clocks)))]
    clocked: dict[str, Replacements] = {
        name: [clocks.around(each) if is_slow(each) else each for each in every] for name, every in made.items()
    }
    return {CLOCKS_ALONE: [clocks.around(each) for each in alone], **clocked}


def is_slow(replacement: Replacement) -> bool:
    """Methods of C++ take less time than two clocks."""
    return "bindings" not in replacement.seam.module


def shipping_to(destination: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def copy_batch_block_offsets(manager: Any, _tensor: Any, *rest: Any) -> Any:
        return original(manager, destination, *rest)

    return copy_batch_block_offsets


@contextmanager
def in_place(arms: dict[str, Replacements], arm: str) -> Iterator[None]:
    """An attribute that a class inherits is put into the class and taken out of it again."""
    up = Upstream()
    with ExitStack() as put_back:
        for seam, make in ((each.seam, each.make) for each in arms.get(arm, ())):
            owner_path, _, name = seam.path.rpartition(".")
            owner: Any = up.attribute(seam.module, owner_path)
            if name in vars(owner):
                put_back.callback(setattr, owner, name, vars(owner)[name])
            else:
                put_back.callback(delattr, owner, name)
            setattr(owner, name, make(getattr(owner, name)))
        yield


def rows_of(loop: Loop, step_ms: int, cycles: int, servers: int, rounds: int, *, on_gpu: bool) -> Iterator[Row]:
    seam_clocks = SeamClocks()
    arms = arms_of(loop, seam_clocks, on_gpu=on_gpu)
    names = sorted({each.seam.path.rpartition(".")[2].strip("_") for each in arms[CLOCKS_ALONE]})
    clocks: dict[str, Callable[[], int]] = dict(CLOCKS)
    for name in names:
        clocks[f"{name}_us"] = partial(seam_clocks.whole.__getitem__, name)
        clocks[f"{name}_own_us"] = partial(own_of, seam_clocks, name)
    for name in ("again", "driver_copy", "driver_record"):
        clocks[f"{name}_us"] = partial(seam_clocks.whole.__getitem__, name)
    clocks |= {metric: partial(nanoseconds, counter) for metric, counter in COUNTED.items()}
    taken = []
    for _ in range(servers):
        turns = Turns([OFF, *arms], rounds, partial(in_place, arms), length=TURN, left_out=LEFT_OUT)
        taken.append(iterations(loop, BATCH, cycles, turns, clocks))
    yield from summed_up(f"{loop.name}-batch{BATCH}-step{step_ms}ms", taken, [OFF, *arms])


def own_of(clocks: SeamClocks, name: str) -> int:
    return clocks.whole[name] - clocks.inner[name]


def nanoseconds(counter: counters.Counter) -> int:
    return round(counter.value * 1e9)


def summed_up(name: str, servers: Sequence[dict[str, Taken]], arms: Sequence[str]) -> Iterator[Row]:
    def values(metric: str, arm: str) -> Any:
        return np.concatenate([us for server in servers for of, us in server[metric] if of == arm])

    for metric in servers[0]:
        empty = float(np.median(values(metric, CLOCKS_ALONE))) if metric.endswith("own_us") else 0.0
        for arm in arms:
            us = values(metric, arm)
            if us.any():
                yield Row(name, TOKENS_PER_BLOCK, arm, metric, Summary.of((us - empty).tolist()))
            if metric in CLOCKS and arm != OFF:
                added = [each for server in servers for each in added_by(arm, server[metric])]
                yield Row(name, TOKENS_PER_BLOCK, arm, f"added_{metric}", Summary.of(added))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one server, one round")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--device", choices=("cpu", "torch"), default="torch")
    options = parser.parse_args()
    servers_max, rounds = (1, 1) if options.quick else (options.servers, options.rounds)
    on_gpu = options.device == "torch"
    steps = {0: 0} | ({2: round(2 * spin_rate())} if on_gpu else {})

    def rows() -> Iterator[Row]:
        for loop in (each for each in LOOPS if each.variant in FIXES):
            with upstream(loop.variant, options.device):
                import_module("tensorrt_llm._torch.pyexecutor.py_executor_creator")
                for step_ms, cycles in steps.items():
                    servers = min(2, servers_max) if cycles else servers_max
                    yield from rows_of(loop, step_ms, cycles, servers, rounds, on_gpu=on_gpu)

    report("seams.csv", rows(), options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
