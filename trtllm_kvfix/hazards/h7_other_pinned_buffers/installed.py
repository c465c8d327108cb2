"""Inputs of a forward step that the host writes again (H7)."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from trtllm_kvfix.hazards.build import (
    Executor,
    Reached,
    metadata,
    played_behind_a_held_stream,
    unmade,
    with_two_batches,
)
from trtllm_kvfix.hazards.case import Comparison, Played
from trtllm_kvfix.hazards.ground import Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.small import FIRST, LENGTH, SECOND, mapping
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import MODEL_ENGINE, PY_EXECUTOR, RESOURCE_MANAGER, SCHEDULER, Upstream

ENGINE = "PyTorchModelEngine"
SCHEDULE = "PyExecutor._prepare_and_schedule_batch"
PIPELINE, UPSTREAMS_WAIT = "PyExecutor._pp_schedule_and_propagate", "_wait_for_model_engine_input_copy"
PROMPT_LENS = {tuple(FIRST): [LENGTH, LENGTH - 1], tuple(SECOND): [LENGTH - 2, LENGTH - 3]}


def keeps_its_inputs(ground: Ground, up: Upstream) -> str | None:
    """The stream is held behind a batch's inputs, and the loop goes on: does the batch get its own prompt lengths?"""
    if not up.has(MODEL_ENGINE, ENGINE) or not up.has(PY_EXECUTOR, SCHEDULE):
        raise NothingToShow("there is no executor of the PyTorch backend")
    if not up.has(PY_EXECUTOR, f"PyExecutor.{UPSTREAMS_WAIT}"):
        loop = _Loop(ground, up)
        return loop.survives(loop.schedule) or loop.survives(loop.prepare_inputs)
    if not up.has(PY_EXECUTOR, PIPELINE):
        raise NothingToShow("upstream's own wait begins in the engine's forward step, which needs a model: not shown")
    pipeline = _PipelineLoop(ground, up)
    return pipeline.survives(pipeline.schedule)


class _Loop(Played):
    """Inputs of two batches, one after the other. Only attention's metadata is prepared, which needs no model.

    The next inputs may be written by the next scheduling step, or by the same engine's next preparation.
    """

    def __init__(self, ground: Ground, up: Upstream) -> None:
        self._ground = ground
        kind = up.attribute(RESOURCE_MANAGER, "KVCacheManager")
        self._cache, self._stream = with_two_batches(kind, ground)
        self._metadata = metadata(up, self._cache, ground)
        self._output = getattr(self._metadata, "prompt_lens_cuda", None)
        if self._output is None:
            raise Unavailable("attention's metadata has no prompt_lens_cuda")
        self._seen = ground.pinned(tuple(self._output.shape))
        self._engine = unmade(
            up.attribute(MODEL_ENGINE, ENGINE), mapping=mapping(), _prepare_tp_inputs=lambda *_, **__: self._write()
        )
        self._scheduling: Any = up.attribute(PY_EXECUTOR, SCHEDULE)
        self._batch = import_module(SCHEDULER).ScheduledRequests()

    def prepare_inputs(self, batch: list[int]) -> None:
        self._chosen, self._has_written = batch, False
        try:
            self._engine._prepare_inputs(self._batch, self._cache, self._metadata)
        except AttributeError as error:
            if self._has_written:
                raise
            raise Unavailable(f"{ENGINE}._prepare_inputs cannot be called without a model: {error}") from error

    def schedule(self, batch: list[int]) -> None:
        """The step has begun when it asks the executor for something. What follows may write any host buffer."""
        self._chosen = batch
        with suppress(Reached):
            self._scheduling(Executor(self._write))

    def survives(self, go_on: Callable[[list[int]], None]) -> str | None:
        self._go_on = go_on
        own, arrived = played_behind_a_held_stream(self, self._ground, self._stream)
        if arrived == own:
            return None
        whose = "those of the next" if arrived == PROMPT_LENS[tuple(SECOND)] else str(arrived)
        step = "scheduling" if go_on == self.schedule else "preparing inputs"
        return f"{step} did not wait for the device: a batch got other prompt lengths, {whose}"

    def call(self) -> None:
        with self._ground.on(self._stream):
            self.prepare_inputs(FIRST)
            self._seen.copy_(self._output, non_blocking=True)

    def disturb(self) -> None:
        with self._ground.on(self._stream):
            self._go_on(SECOND)

    def settle(self) -> None:
        self._stream.synchronize()

    def compare(self) -> Comparison:
        return Comparison(PROMPT_LENS[tuple(FIRST)], self._seen.numpy()[: len(FIRST)].tolist())

    def _write(self) -> None:
        self._has_written = True
        self._metadata.request_ids = self._chosen
        self._metadata.prompt_lens = PROMPT_LENS[tuple(self._chosen)]
        self._metadata.prepare()


class _PipelineLoop(_Loop):
    """Upstream has a wait, but not in this loop. Its engine waits for the stream here: its event would need a model."""

    def __init__(self, ground: Ground, up: Upstream) -> None:
        super().__init__(ground, up)
        self._begins: Any = up.attribute(PY_EXECUTOR, PIPELINE)
        self._passed = [0] * ("microbatch_id" in up.parameters(self._begins))
        self._upstreams_wait: Any = up.attribute(PY_EXECUTOR, f"PyExecutor.{UPSTREAMS_WAIT}")

    def prepare_inputs(self, batch: list[int]) -> None:
        self._chosen = batch
        self._write()

    def schedule(self, batch: list[int]) -> None:
        self._chosen = batch
        executor = Executor(self._write, model_engine=SimpleNamespace(wait_for_input_copy=self._stream.synchronize))
        setattr(executor, UPSTREAMS_WAIT, lambda: self._upstreams_wait(executor))
        with suppress(Reached):
            self._begins(executor, *self._passed)


SCENARIOS = (Scenario("inputs", "input-copy-fence", keeps_its_inputs),)
