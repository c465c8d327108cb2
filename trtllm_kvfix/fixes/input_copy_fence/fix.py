"""Steps that write host buffers wait until the device has taken the inputs of the last forward step.

Input preparation fills persistent pinned buffers and enqueues copies out of them; the next iteration writes them again
(H7), and so does the rest of the same one. This is the safety net under the buffers that no other fix stages. It costs
run-ahead: the host does not get past the point where the device starts on the current step. So it is measured, and can
be switched off by itself.

Not every step begins with scheduling: ranks of a pipeline run what another rank has scheduled, and a draft engine makes
several steps for one. So an engine that prepares inputs waits for its own last ones, too, unless that wait has been
made.

Newer builds have such a fence themselves, but none in the loop of a pipeline's ranks. There, upstream's own wait is
made where that loop's steps begin.

If our own code fails, the fence waits for the whole stream. It does the same when it stands down.
"""

import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.waits import finish, wait_for
from trtllm_kvfix.hazards.h7_other_pinned_buffers import device as h7
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import StreamMarks
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import MODEL_ENGINE, PY_EXECUTOR, Upstream
from trtllm_kvfix.staging import stream_marks

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


ID = "input-copy-fence"


class _OfThread(threading.local):
    """Marks behind the inputs that a thread has enqueued, by their engine's identity."""

    def __init__(self) -> None:
        self.marks: defaultdict[int, StreamMarks] = defaultdict(stream_marks)
        self.pending: dict[int, StreamMarks] = {}  # those that it has not waited for


class InputFence:
    """A thread waits for what it has enqueued itself: an executor's loop both runs the forward step and schedules.

    A mark for each engine and stream, so a draft engine on a stream of its own is covered like the target's.
    """

    def __init__(self) -> None:
        self._inputs = _OfThread()
        self._tried = fuse.of(ID)

    def record(self, engine: Any) -> None:
        inputs, number = self._inputs, id(engine)
        marks = inputs.marks[number]
        marks.record()
        inputs.pending[number] = marks

    def wait(self, engine: Any = None) -> None:
        """Wait for the last inputs of one engine, or of all. It raises nothing."""
        due: list[StreamMarks] | None = None
        try:
            due = self._due(engine)
            if not due:
                return
            wait_for(due, counters.fence_waits, counters.fence_wait_seconds)
        except Exception as error:
            self._tried.fault(error)
            streams: set[int | None] = {stream for marks in due or () for stream in marks.streams}
            for stream in streams or {None}:
                finish(stream)
        else:
            self._tried.in_a_row = 0

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `PyTorchModelEngine._prepare_inputs`, which runs on the stream that the copies are enqueued on."""

        def _prepare_inputs(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inputs.pending:
                self.wait(engine)
            inputs = original(engine, *args, **kwargs)
            if not self._tried.blown:
                try:
                    self.record(engine)
                    return inputs
                except Exception as error:
                    self._tried.fault(error)
            self.fall_back()
            return inputs

        return _prepare_inputs

    def fall_back(self) -> None:
        """Wait for inputs that have no mark: they have been read when this returns."""
        finish()

    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For the steps of the loop that may write any host buffer."""

        def step(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inputs.pending:
                self.wait()
            return original(executor, *args, **kwargs)

        return step

    def _due(self, engine: Any) -> list[StreamMarks]:
        pending = self._inputs.pending
        if engine is not None:
            of_engine = pending.pop(id(engine), None)
            return [] if of_engine is None else [of_engine]
        # Unlike `list(...)`, this takes one of the lists that Python keeps, and so adds none to them.
        due = [*pending.values()]
        pending.clear()
        return due


class ObservedFence(InputFence):
    """Without its waits: counts the steps that were begun while inputs of the last forward step were pending."""

    def wait(self, engine: Any = None) -> None:
        try:
            if not all(marks.done() for marks in self._due(engine)):
                counters.observed.add(1, ID)
        except Exception as error:
            self._tried.fault(error)
        else:
            self._tried.in_a_row = 0

    def fall_back(self) -> None:
        """An observer waits for nothing."""


class UpstreamsFence:
    """Makes upstream's own wait before a step in which upstream does not. What that raises is upstream's."""

    def __init__(self) -> None:
        self._tried = fuse.of(ID)

    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For the step that begins the loop of a pipeline's ranks."""

        def step(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.wait(executor)
            return original(executor, *args, **kwargs)

        return step

    def wait(self, executor: Any) -> None:
        is_pending, begun = self.is_pending(executor), time.monotonic()
        getattr(executor, UPSTREAMS_WAIT)()
        if is_pending:
            self.counting(lambda: self.count_wait(time.monotonic() - begun))

    def is_pending(self, executor: Any) -> bool:
        return bool(self.counting(lambda: _pending_event(executor.model_engine) is not None))

    def count_wait(self, waited_s: float) -> None:
        counters.fence_waits.add()
        counters.fence_wait_seconds.add(waited_s)
        self._tried.in_a_row = 0

    def counting(self, work: Callable[[], Any]) -> Any:
        """Counters may fail, and upstream's wait is made all the same."""
        if self._tried.blown:
            return None
        try:
            return work()
        except Exception as error:
            self._tried.fault(error)
            return None


class ObservedUpstreamsFence(UpstreamsFence):
    """Without that wait: counts the steps before which it would have waited."""

    def wait(self, executor: Any) -> None:
        if self.is_pending(executor):
            self.counting(self._count)

    def _count(self) -> None:
        counters.observed.add(1, ID)
        self._tried.in_a_row = 0


def _pending_event(engine: Any) -> Any | None:
    """Upstream's event behind the last inputs, if the device has not come to it: the engine's, or that of the runner
    which makes the engine's steps."""
    for owner in (engine, getattr(engine, "_runner", None)):
        event = getattr(owner, "_prepare_inputs_event", None)
        if event is not None:
            return None if event.query() else event
    return None


# ---- when it is needed, and what it replaces ----

ENGINE = "PyTorchModelEngine"
PREPARE_INPUTS = f"{ENGINE}._prepare_inputs"
SCHEDULE = "PyExecutor._prepare_and_schedule_batch"
# The loop of a pipeline's ranks begins its steps with the first of these.
PIPELINE, PIPELINE_LOOP = "PyExecutor._pp_schedule_and_propagate", "PyExecutor._executor_loop_pp"
# Later in the same iteration, when the next inputs have been enqueued: what they write is read by then, too. Upstream's
# own fence waits at the same three steps. What takes the place of all of these passes on whatever it is called with.
ALSO_WRITING = ("PyExecutor._update_request_states", "PyExecutor._process_previous_batch")
# How many arguments upstream's own callers pass, with self.
PASSED = {PREPARE_INPUTS: 4, SCHEDULE: 1, ALSO_WRITING[0]: 2, ALSO_WRITING[1]: 1}
UPSTREAMS_WAIT = "_wait_for_model_engine_input_copy"


def probe(up: Upstream) -> Answer:
    if not up.has(MODEL_ENGINE, ENGINE) or not up.has(PY_EXECUTOR, "PyExecutor"):
        return absent("there is no executor of the PyTorch backend")
    if _has_upstreams(up) != up.has(MODEL_ENGINE, f"{ENGINE}.wait_for_input_copy"):
        return unknown("one half of upstream's own wait for the input copies is there, the other is not")
    if _has_upstreams(up):
        return _beside_upstreams(up)
    for path, passed in PASSED.items():
        function = up.attribute(MODEL_ENGINE if path == PREPARE_INPUTS else PY_EXECUTOR, path)
        if function is None and path not in ALSO_WRITING:
            return unknown(f"there is no {path}")
        if function is not None and not takes(up, function, *[SELF] * passed):
            return unknown(f"{path} cannot be called as upstream is known to call it")
    return needed("the next scheduling step may write host buffers that the device has not read yet")


def _has_upstreams(up: Upstream) -> bool:
    return up.has(PY_EXECUTOR, f"PyExecutor.{UPSTREAMS_WAIT}")


def _beside_upstreams(up: Upstream) -> Answer:
    begins, loop = (up.attribute(PY_EXECUTOR, path) for path in (PIPELINE, PIPELINE_LOOP))
    codes = [getattr(inspect.unwrap(each), "__code__", None) for each in (begins, loop) if each is not None]
    if begins is None or any(code is not None and UPSTREAMS_WAIT in code.co_names for code in codes):
        return fixed("the executor waits for the input copies itself (T#14128)")
    return needed("upstream's own wait is in the other loops", only_with="pipeline parallelism")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _beside(UpstreamsFence()) if _has_upstreams(up) else _around(up, InputFence())


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _beside(ObservedUpstreamsFence()) if _has_upstreams(up) else _around(up, ObservedFence())


def _beside(fence: UpstreamsFence) -> Sequence[Replacement]:
    return [Replacement(Seam(PY_EXECUTOR, PIPELINE), fence.waiting)]


def _around(up: Upstream, fence: InputFence) -> Sequence[Replacement]:
    steps = [SCHEDULE, *(path for path in (*ALSO_WRITING, PIPELINE) if up.has(PY_EXECUTOR, path))]
    return [
        Replacement(Seam(MODEL_ENGINE, PREPARE_INPUTS), fence.recording),
        *(Replacement(Seam(PY_EXECUTOR, path), fence.waiting) for path in steps),
    ]


def self_test() -> None:
    h7.self_test(InputFence)


FIX = Fix(
    id="input-copy-fence",
    hazard="H7",
    title="The next scheduling step waits until the device has read the last step's inputs",
    upstream=("T#14128",),
    triggers=(MODEL_ENGINE, PY_EXECUTOR),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C D F"),
    keeps_safe=(
        HostBuffers(r"", r"^(?!_torch/auto_deploy/)"),  # the engine there is none that a fence knows
    ),
)
