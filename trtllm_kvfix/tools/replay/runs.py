"""Several replays of one workload: both ways of admission side by side, or one for each host size.

The host sizes make the curve behind "how much host memory do I need?".
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from trtllm_kvfix.tools.replay.bounds import Reusable, reusable
from trtllm_kvfix.tools.replay.contents import contents_of
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import Admission, Bounds, CacheShape, Outcome
from trtllm_kvfix.tools.replay.reserved_blocks import refused
from trtllm_kvfix.tools.replay.side_by_side import Run, SideBySide, usable_cores

WORTH_A_PROCESS = 1000  # requests; a replay of fewer is over before a process has started


class Result(NamedTuple):
    outcomes: list[Outcome]
    partial: bool  # interrupted: some outcomes may be partial, and others may be missing


def jobs_for(workload: Workload) -> int:
    """The number of replays at a time, unless `--jobs` sets it."""
    return usable_cores() if len(workload.requests) >= WORTH_A_PROCESS else 1


def comparison(shape: CacheShape) -> list[Run]:
    return [Run(shape, Admission.BATCH), Run(shape, Admission.ONE_BY_ONE)]


def sweep(shape: CacheShape, host_sizes: Sequence[int]) -> list[Run]:
    return [Run(shape.model_copy(update={"blocks_host": blocks_host})) for blocks_host in sorted(set(host_sizes))]


def execute(workload: Workload, runs: Sequence[Run], on_finished: Callable[[int], object], jobs: int = 1) -> Result:
    """Run all, `jobs` at a time. Ctrl-C ends those that run early and leaves out the rest; what was counted stays."""
    outcomes: list[Outcome] = []
    try:
        if min(jobs, len(runs)) > 1:
            return _execute_side_by_side(workload, runs, on_finished, jobs)
        for run in runs:
            before = len(outcomes) * len(workload.requests)
            outcomes.append(Replay(workload, *run).run(partial(_shifted, on_finished, before)))
            if outcomes[-1].partial:
                return Result(outcomes, partial=True)
        return Result(_bounded(outcomes, _reusable(_shapes_of(runs), workload)), partial=False)
    except KeyboardInterrupt:  # between two replays, while a large pool was made, or for the second time
        return Result(outcomes, partial=True)


def _execute_side_by_side(
    workload: Workload, runs: Sequence[Run], on_finished: Callable[[int], object], jobs: int
) -> Result:
    with SideBySide(workload, runs, jobs) as side:
        bounds: Future[Reusable] = side.ask(partial(_reusable, _shapes_of(runs)))
        try:
            outcomes = side.outcomes(on_finished)
            return Result(_bounded(outcomes, bounds.result()), partial=False)
        except KeyboardInterrupt:
            side.stop()
            bounds.cancel()
            outcomes = side.outcomes(on_finished)
            return Result(outcomes, partial=True)


def _shapes_of(runs: Sequence[Run]) -> list[CacheShape]:
    return [run.shape for run in runs]


def _reusable(shapes: Sequence[CacheShape], workload: Workload) -> Reusable:
    """The runs of a report have one primary pool and one size of block, and so the same refused requests."""
    admitted = set(range(len(workload.requests))).difference(refused(workload.requests, shapes[0]))
    sizes = [shape.blocks_primary + shape.blocks_host + shape.blocks_remote for shape in shapes]
    return reusable(contents_of(workload, sorted(admitted)), shapes[0].tokens_per_block, sizes)


def _bounded(outcomes: Sequence[Outcome], found: Reusable) -> list[Outcome]:
    return [
        outcome.model_copy(update={"bounds": Bounds(clairvoyant=tokens, ceiling=found.ceiling)})
        for outcome, tokens in zip(outcomes, found.clairvoyant, strict=True)
    ]


def _shifted(on_finished: Callable[[int], object], before: int, finished: int) -> None:
    on_finished(before + finished)
