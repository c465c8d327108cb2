"""Launches that upstream's newest source skips because their rows equal those of the last one (H10).

The filter, its modes and the wait for input copies are upstream's, and so is the launch. The steps are ours: a batch of
one request is launched step by step, each time into the same tensor, and in the first step something is written while
the launch is pending. Then the table is as it was, for a while.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import cuda, late
from integration.upstream.arrivals import Arrival
from integration.upstream.launch_filter import STEP_PROLOGUE_TRIM
from integration.upstream.loading import EXECUTOR
from integration.upstream.server import Outcome
from integration.upstream.v2_offsets import BLOCKS, OffsetsServer
from integration.upstream.v2_runtime import BAD_PAGE

STEADY = 6  # steps between the one that is disturbed and the next block
AFTER = 2
PAGES = 4  # of the request, before its next block


def waiting(tells: bool) -> tuple[Any, cuda.Event]:
    """Upstream's executor, and the event for which it waits. Its model engine is ours; AutoDeploy's cannot tell."""
    executor = object.__new__(import_module(f"{EXECUTOR}.py_executor").PyExecutor)
    copied = cuda.Event()
    executor.model_engine = SimpleNamespace(**({"wait_for_input_copy": copied.synchronize} if tells else {}))
    return executor, copied


class Steps(OffsetsServer):
    """Another batch is launched into a tensor of its own, and its copy index takes the place of the first's."""

    tells = False  # whether the engine can say when its input copies have been made

    def _executor(self) -> Any:
        executor, self.copied = waiting(self.tells)
        return executor

    def serve(self, arrivals: list[Arrival], cancels: dict[int, list[int]] | None = None) -> Outcome:
        del cancels
        outcome = Outcome()
        self.rows = {each.id: self.manager.index_mapper.add_new_sequence(each.id) for each in arrivals}
        self.pages = {each.id: [100 * each.id + ordinal for ordinal in range(PAGES)] for each in arrivals}
        shape = (1, self.shape.max_batch_size, 2, BLOCKS)
        self.tensors = {each.id: late.on_device(shape, torch.int32) for each in arrivals}
        for each in self.rows:
            self._write(each, self.pages[each])
        try:
            with cuda.stream(self.stream):
                self._steps(arrivals[0].id, arrivals[1].id, outcome)
        except Exception as error:
            outcome.died = f"{type(error).__name__}: {error}"
        outcome.answered = list(self.rows)
        return outcome

    def _steps(self, first: int, other: int, outcome: Outcome) -> None:
        self._launch_of(first)
        if self._has_arrived(first) != self.tells:
            outcome.remarks.append("the launch was not pending when its sources were written")
        self.disturb(first, other)
        self._judge(1, first, outcome)
        self._write(first, self.pages[first])
        for step in range(2, 2 + STEADY + AFTER):
            if step == 2 + STEADY:
                self.pages[first].append(100 * first + PAGES)
                self._write(first, self.pages[first])
            self._launch_of(first)
            self._judge(step, first, outcome)

    def disturb(self, first: int, other: int) -> None:
        del first
        self._launch_of(other)

    def _launch_of(self, request_id: int) -> None:
        self.device.hold()
        self.manager.copy_batch_block_offsets(self.tensors[request_id], [request_id], 1, 1, 1)
        self.copied.record()
        self.executor._wait_for_model_engine_input_copy()

    def _judge(self, step: int, request_id: int, outcome: Outcome) -> None:
        self.device.settle()
        if not self._has_arrived(request_id):
            found = late.plain(self.tensors[request_id])[0, 0, 0].tolist()
            outcome.wrong_rows.append(f"step {step}: the device has {found}, meant was {self.pages[request_id]}")

    def _has_arrived(self, request_id: int) -> bool:
        pages = self.pages[request_id]
        found: list[int] = late.plain(self.tensors[request_id])[0, 0, 0].tolist()
        return found[: len(pages)] == [2 * page for page in pages]

    def _write(self, request_id: int, pages: list[int]) -> None:
        row = pages + [BAD_PAGE] * (BLOCKS - len(pages))
        table = self.manager.host_kv_cache_block_offsets
        table[0, self.rows[request_id], 0] = torch.tensor(row, dtype=torch.int32)


class RewrittenSteps(Steps):
    """The row gets other pages, and its own again before the next step."""

    def disturb(self, first: int, other: int) -> None:
        self._write(first, self.pages[other])


class AwaitedSteps(Steps):
    tells = True


class RefilledSteps:
    """One of the other pinned sources (H7): filled anew for each step, and copied unless the filter knows it already.
    No excerpt holds upstream's statements that do it; these keep to the filter's contract.
    """

    def __init__(self, device: late.LateDevice, *, tells: bool = False) -> None:
        self.device = device
        self.filter = import_module(STEP_PROLOGUE_TRIM).GLOBAL_COPY_FILTER
        self.source = late.pinned((PAGES,), torch.int32)
        self.tensors = {each: late.on_device((PAGES,), torch.int32) for each in ("this", "other")}
        self.executor, self.copied = waiting(tells)
        self.read: list[Any] = []  # by attention of this batch, in each step

    def fill(self, value: int) -> None:
        self.source.fill_(value)

    def copy(self, into: str = "this") -> None:
        tensor = self.tensors[into]
        if not self.filter.unchanged(tensor, self.source):
            tensor.copy_(self.source, non_blocking=True)
            self.filter.record(tensor, self.source)

    def step(self) -> None:
        """Of this batch, whose values are the same in each."""
        self.device.hold()
        self.fill(1)
        self.copy()
        seen = late.on_device((PAGES,), torch.int32)
        seen.copy_(self.tensors["this"], non_blocking=True)
        self.read.append(seen)
        self.copied.record()
        self.executor._wait_for_model_engine_input_copy()

    def wrong(self) -> int:
        self.device.settle()
        return sum(late.plain(each).tolist() != [1] * PAGES for each in self.read)
