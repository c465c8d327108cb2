"""The next scheduling step waits until the device has taken the inputs of the last forward step.

Input preparation fills persistent pinned buffers and enqueues copies out of them; the next iteration writes them again
(H7). This is the net under the buffers that nobody has mended at their source. It costs run-ahead: the host does not
get past the point where the device starts on the current step. So it is measured, and can be switched off by itself.

Not every step begins with scheduling: ranks of a pipeline run what another rank has scheduled, and a draft engine makes
several steps for one. So an engine that prepares inputs waits for its own last ones, too, unless scheduling has.
"""

import threading
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.staging import Mark, current_place


class InputFence:
    """What a thread has enqueued is awaited by the same thread: an executor's loop runs forward and schedules.

    A mark for each engine and stream, so a draft engine on a stream of its own is covered like the target's.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def record(self, engine: Any) -> None:
        place = current_place()
        key = (id(engine), place.stream, place.device.name)
        marks = self._marks()
        if key not in marks:
            marks[key] = Mark(place.device)
        marks[key].record(place.stream)
        self._of_thread.pending[key] = marks[key]

    def wait(self, engine: Any = None) -> None:
        """For the last inputs of one engine, or of all."""
        self._marks()
        pending: dict[Any, Mark] = self._of_thread.pending
        marks = [pending.pop(key) for key in list(pending) if engine is None or key[0] == id(engine)]
        waited_s = sum(mark.wait() for mark in marks)
        if waited_s > 0:
            counters.fence_waits.add()
            counters.fence_wait_seconds.add(waited_s)

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `PyTorchModelEngine._prepare_inputs`, which runs on the stream that the copies are enqueued on."""

        def _prepare_inputs(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self.wait(engine)
            inputs = original(engine, *args, **kwargs)
            self.record(engine)
            return inputs

        return _prepare_inputs

    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For the head of the scheduling step: what follows may write any host buffer."""

        def _prepare_and_schedule_batch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.wait()
            return original(executor, *args, **kwargs)

        return _prepare_and_schedule_batch

    def _marks(self) -> dict[Any, Mark]:
        if not hasattr(self._of_thread, "marks"):
            self._of_thread.marks = {}
            self._of_thread.pending = {}
        marks: dict[Any, Mark] = self._of_thread.marks
        return marks
