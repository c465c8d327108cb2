"""Several replays of one workload: both ways of admission side by side, or one for each host size.

The host sizes make the curve behind "how much host memory do I need?".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import Admission, CacheShape, Outcome


class Run(NamedTuple):
    shape: CacheShape
    admission: Admission = Admission.BATCH


class Result(NamedTuple):
    outcomes: list[Outcome]
    partial: bool  # interrupted: the last outcome may be partial, and others may be missing


def comparison(shape: CacheShape) -> list[Run]:
    return [Run(shape, Admission.BATCH), Run(shape, Admission.ONE_BY_ONE)]


def sweep(shape: CacheShape, host_sizes: Sequence[int]) -> list[Run]:
    return [Run(shape.model_copy(update={"blocks_host": blocks_host})) for blocks_host in sorted(set(host_sizes))]


def execute(workload: Workload, runs: Sequence[Run], on_finished: Callable[[int], object]) -> Result:
    """Run one after another. Ctrl-C ends the last one early and leaves out the rest; what was counted stays."""
    outcomes: list[Outcome] = []
    try:
        for run in runs:
            before = len(outcomes) * len(workload.requests)
            outcomes.append(Replay(workload, *run).run(partial(_shifted, on_finished, before)))
            if outcomes[-1].partial:
                break
    except KeyboardInterrupt:  # between two replays, or while a large pool was made
        return Result(outcomes, partial=True)
    return Result(outcomes, outcomes[-1].partial)


def _shifted(on_finished: Callable[[int], object], before: int, finished: int) -> None:
    on_finished(before + finished)
