"""Several replays of one workload: both ways of admission side by side, or one for each host size.

The host sizes make the curve behind "how much host memory do I need?".

Long replays run at the same time, each in a process of its own. The trace is parsed once, and no process has a copy of
it. Processes are spawned, not forked: a fork would copy locks that threads of libraries hold. Each makes its own
managers.
"""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import inf
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.settings import environment, export, unset
from trtllm_kvfix.tools.interrupts import deaf_to_interrupts
from trtllm_kvfix.tools.replay.bounds import Reusable, reusable
from trtllm_kvfix.tools.replay.contents import contents_of
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import (
    AdmissionKind,
    Bounds,
    CacheShape,
    HostAdmission,
    HostTierKind,
    ReplayOutcome,
)
from trtllm_kvfix.tools.replay.reserved_blocks import refused

_ALIGNMENT = 16  # bytes; numpy is slow where an array is not aligned


class SharedWorkload:
    """A workload that several processes read in place: its arrays lie in memory that all of them map.

    Given to a process when that is started, which is when it can take the memory over.
    """

    def __init__(self, context: BaseContext, workload: Workload) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(workload, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        self._sizes = [view.nbytes for view in views]
        self._memory = context.RawArray("B", max(self._starts()[-1], 1))
        memory = memoryview(self._memory).cast("B")
        for start, view in zip(self._starts(), views, strict=False):
            memory[start : start + view.nbytes] = view

    def load(self) -> Workload:
        memory = memoryview(self._memory).cast("B")
        parts = (memory[start : start + size] for start, size in zip(self._starts(), self._sizes, strict=False))
        workload: Workload = pickle.loads(self._pickled, buffers=parts)
        return workload

    def _starts(self) -> list[int]:
        """Offsets at which the arrays start, and at which the last one ends."""
        return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes), initial=0))


PROGRESS_S = 0.1
T = TypeVar("T")


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Run(NamedTuple):
    shape: CacheShape
    admission: AdmissionKind = AdmissionKind.BATCH


@dataclass
class _Desk:
    """What a process of the pool works with."""

    workload: Workload
    finished: Any  # requests, by the number of the run; shared
    stop: Any  # whether Ctrl-C was pressed; shared


_desk: _Desk | None = None  # of this process, where it is one that runs replays


def _sit_down(shared: SharedWorkload, finished: Any, stop: Any) -> None:
    global _desk  # noqa: PLW0603  a pool hands state to its processes in no other way
    _desk = _Desk(shared.load(), finished, stop)


def _replay(number: int, run: Run) -> ReplayOutcome | None:
    assert _desk is not None, "the pool has not set this process up"
    desk = _desk
    if desk.stop.value:
        return None

    def count(finished: int) -> None:
        desk.finished[number] = finished
        if desk.stop.value:
            raise KeyboardInterrupt

    return Replay(desk.workload, *run).run(count)


def _ask(question: Callable[[Workload], T]) -> T:
    assert _desk is not None, "the pool has not set this process up"
    if _desk.stop.value:  # the pool assigns some calls before a process is free; those cannot be cancelled
        raise KeyboardInterrupt
    return question(_desk.workload)


class SideBySide:
    """Up to `jobs` processes. The parent handles Ctrl-C: it makes them stop after the next request."""

    def __init__(self, workload: Workload, runs: Sequence[Run], jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._finished = context.RawArray("Q", len(runs))
        self._stop = context.RawValue("b", 0)
        self._pool = ProcessPoolExecutor(
            min(jobs, len(runs)), context, _sit_down, (SharedWorkload(context, workload), self._finished, self._stop)
        )
        self._runs = runs
        self._futures: list[Future[ReplayOutcome | None]] = []

    def __enter__(self) -> "SideBySide":
        with deaf_to_interrupts(), _without_main(), with_large_pages():
            begun = {number: self._pool.submit(_replay, number, self._runs[number]) for number in self._longest_first()}
        self._futures = [begun[number] for number in range(len(self._runs))]
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        self._pool.shutdown()

    def _longest_first(self) -> list[int]:
        """A process that begins a long run last keeps the others waiting. Without a host tier a run is shortest, and a
        small one, which drops most, takes longest."""
        return sorted(range(len(self._runs)), key=lambda number: self._runs[number].shape.blocks_host or inf)

    def ask(self, question: Callable[[Workload], T]) -> Future[T]:
        """Answered in one of the processes, once the replays leave one of them free."""
        with deaf_to_interrupts(), _without_main(), with_large_pages():
            return self._pool.submit(_ask, question)

    def stop(self) -> None:
        self._stop.value = 1
        for future in self._futures:
            future.cancel()

    def outcomes(self, on_finished: Callable[[int], object]) -> list[ReplayOutcome]:
        """In the order of the runs. After stop() some are partial, and those that had not begun are missing."""
        try:
            while wait(self._futures, timeout=PROGRESS_S).not_done:
                on_finished(sum(self._finished))
            ended = (future.result() for future in self._futures if not future.cancelled())
            return [outcome for outcome in ended if outcome is not None]
        except BrokenProcessPool as error:
            raise KvfixError(
                "a process that ran a replay was killed, usually for lack of memory: "
                f"--jobs below {len(self._futures)} runs fewer at a time"
            ) from error


@contextmanager
def _without_main() -> Iterator[None]:
    """A spawned process imports the program's main module first, which may run the command again. None needs it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_OF_ALLOCATOR = "GLIBC_TUNABLES"


@contextmanager
def with_large_pages() -> Iterator[None]:
    """A process that is started inside asks the kernel for large pages, since a replay reads here and there in its
    pools. Other allocators than glibc's ignore it, and what the user has chosen stays."""
    if _OF_ALLOCATOR in environment():
        yield
        return
    export({_OF_ALLOCATOR: "glibc.malloc.hugetlb=1"})
    try:
        yield
    finally:
        unset([_OF_ALLOCATOR])


WORTH_A_PROCESS = 1000  # requests; a replay of fewer is over before a process has started


class Result(NamedTuple):
    outcomes: list[ReplayOutcome]
    partial: bool  # interrupted: some outcomes may be partial, and others may be missing


def jobs_for(workload: Workload) -> int:
    """The number of replays at a time, unless `--jobs` sets it."""
    return usable_cores() if len(workload.requests) >= WORTH_A_PROCESS else 1


def comparison(shape: CacheShape) -> list[Run]:
    return [Run(shape, AdmissionKind.BATCH), Run(shape, AdmissionKind.ONE_BY_ONE)]


def sweep(shape: CacheShape, host_sizes: Sequence[int]) -> list[Run]:
    return [Run(shape.model_copy(update={"blocks_host": blocks_host})) for blocks_host in sorted(set(host_sizes))]


def policies(shape: CacheShape, host_sizes: Sequence[int]) -> list[Run]:
    """For each size TensorRT-LLM's own tier, the native manager's and both admissions of the connector; without a host
    tier all are alike."""
    managers: list[dict[str, object]] = [
        {"host_tier": kind, "blocks_remote": 0} for kind in (HostTierKind.BUILT_IN, HostTierKind.NATIVE)
    ]
    connector: dict[str, object] = {"host_tier": HostTierKind.CONNECTOR}
    tiers = [*managers, *(connector | {"host_admission": each} for each in (HostAdmission.ALL, HostAdmission.ADAPTIVE))]
    return [
        Run(shape.model_copy(update={"blocks_host": blocks_host, **tier}))
        for blocks_host in sorted(set(host_sizes))
        for tier in (tiers if blocks_host else tiers[:1])
    ]


def execute(workload: Workload, runs: Sequence[Run], on_finished: Callable[[int], object], jobs: int = 1) -> Result:
    """Run all, `jobs` at a time. Ctrl-C ends those that run early and leaves out the rest; what was counted stays."""
    outcomes: list[ReplayOutcome] = []
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


def _bounded(outcomes: Sequence[ReplayOutcome], found: Reusable) -> list[ReplayOutcome]:
    return [
        outcome.model_copy(update={"bounds": Bounds(clairvoyant=tokens, ceiling=found.ceiling)})
        for outcome, tokens in zip(outcomes, found.clairvoyant, strict=True)
    ]


def _shifted(on_finished: Callable[[int], object], before: int, finished: int) -> None:
    on_finished(before + finished)
