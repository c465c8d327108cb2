"""Measures what a replacement costs a call, in Python alone: originals and the device do nothing.

With --beside, the same calls with the package of another checkout, in processes of their own that take turns; ratios
are to that one.
"""

import argparse
import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import REPOSITORY, RESULTS, Row, Summary, pin_to_one_core, quiet_garbage_collector, report

from tests.simulated import Bench
from trtllm_kvfix import native
from trtllm_kvfix.fixes.concurrent_pins.fix import Turns
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence
from trtllm_kvfix.fixes.nixl_listener.fix import without_listener
from trtllm_kvfix.staging import on_stream

CALLS = 100  # few, so that some batches meet no other process
Call = Callable[[], Any]


def nothing(*_: Any, **__: Any) -> None: ...


class Config:
    def __init__(self, enable_listen_thread: bool = False) -> None:
        self.enable_listen_thread = enable_listen_thread


def take_away_the_device() -> None:
    native.Device.record = nothing  # type: ignore[method-assign]
    native.Device.done = lambda *_: True  # type: ignore[method-assign]


def calls() -> dict[str, Call]:
    turn, fence, engine = Turns().guarded(nothing), InputFence(), object()
    prepare, step = fence.recording(nothing), fence.waiting(nothing)
    Config.__init__ = without_listener(["elsewhere"], Config.__init__)  # type: ignore[method-assign]
    return {
        "turn_us": turn,
        "step_us": lambda: step(engine),
        "prepare_and_step_us": lambda: (prepare(engine), step(engine)),
        "agent_us": Config,
    }


def measured() -> dict[str, float]:
    """Microseconds of each call, the best of some batches: what disturbs only adds."""
    bench, best = Bench(), {}
    pin_to_one_core()
    take_away_the_device()
    with on_stream(bench.device, bench.stream), quiet_garbage_collector():
        for name, call in calls().items():
            best[name] = min(timeit.repeat(call, number=CALLS, repeat=100)) / CALLS * 1e6
    return best


def in_a_process(package: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, with its extension")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured()))
        return 0
    arms = {"with fuse": REPOSITORY} if options.beside is None else {"beside": options.beside, "with fuse": REPOSITORY}
    rounds = [
        {arm: in_a_process(at) for arm, at in arms.items()} for _ in range(3 if options.quick else options.rounds)
    ]
    first = next(iter(arms))
    rows = []
    for metric in rounds[0][first]:
        base = np.median([each[first][metric] for each in rounds])
        for arm in arms:
            taken = [each[arm][metric] for each in rounds]
            ratio = None if len(arms) == 1 else Summary.of([value / float(base) for value in taken])
            rows.append(Row("fuse", 0, arm, metric, Summary.of(taken), ratio))
    report("fuse.csv", rows, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
