"""Steps that write host buffers wait until the device has taken the inputs of the last forward step.

Input preparation fills persistent pinned buffers and enqueues copies out of them; the next iteration writes them again
(H7), and so does the rest of the same one. This is the safety net under the buffers that no other fix stages. It costs
run-ahead: the host does not get past the point where the device starts on the current step. So it is measured, and can
be switched off by itself.

Not every step begins with scheduling: ranks of a pipeline run what another rank has scheduled, and a draft engine makes
several steps for one. So an engine that prepares inputs waits for its own last ones, too, unless that wait has been
made.

Where our own code fails, the fence waits for the whole stream. It does the same when it stands down.
"""

import threading
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.fixes.waits import finish, wait_for
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.staging import Mark, current_place

ID = "input-copy-fence"


class InputFence:
    """A thread waits for what it has enqueued itself: an executor's loop both runs the forward step and schedules.

    A mark for each engine and stream, so a draft engine on a stream of its own is covered like the target's.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._tried = fuse.of(ID)

    def record(self, engine: Any) -> None:
        place = current_place()
        key = (id(engine), place.stream, place.device.name)
        marks, pending = self._marks()
        if key not in marks:
            marks[key] = Mark(place.device, place.stream)
        marks[key].record()
        pending[key] = marks[key]

    def wait(self, engine: Any = None) -> None:
        """Wait for the last inputs of one engine, or of all. It raises nothing, and costs nothing if no wait is due."""
        due: list[Mark] = []
        try:
            due += self._due(engine)
            if not due:
                return
            wait_for(due, counters.fence_waits, counters.fence_wait_seconds)
        except Exception as error:
            self._tried.fault(error)
            streams: set[int | None] = {mark.stream for mark in due}
            for stream in streams or {None}:
                finish(stream)
        else:
            self._tried.in_a_row = 0

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `PyTorchModelEngine._prepare_inputs`, which runs on the stream that the copies are enqueued on."""

        def _prepare_inputs(engine: Any, *args: Any, **kwargs: Any) -> Any:
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
            self.wait()
            return original(executor, *args, **kwargs)

        return step

    def _due(self, engine: Any) -> list[Mark]:
        _, pending = self._marks()
        if not pending:
            return []
        return [pending.pop(key) for key in list(pending) if engine is None or key[0] == id(engine)]

    def _marks(self) -> tuple[dict[Any, Mark], dict[Any, Mark]]:
        """This thread's marks: all of them, and those that have not been awaited."""
        mine = self._of_thread
        if not hasattr(mine, "marks"):
            mine.marks, mine.pending = {}, {}
        return mine.marks, mine.pending


class ObservedFence(InputFence):
    """Without its waits: counts the steps that were begun while inputs of the last forward step were pending."""

    def wait(self, engine: Any = None) -> None:
        try:
            if not all(mark.done() for mark in self._due(engine)):
                counters.observed.add(1, ID)
        except Exception as error:
            self._tried.fault(error)
        else:
            self._tried.in_a_row = 0

    def fall_back(self) -> None:
        """Whoever only counts waits for nothing."""
