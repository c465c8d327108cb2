"""The waits of fixes: for their marks, counted, and where a fix's own code has failed, for everything that was
enqueued."""

import sys
from collections.abc import Iterable

from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.metrics.counters import Counter
from trtllm_kvfix.native import StreamMarks
from trtllm_kvfix.staging import current_place

_said: set[str] = set()


def wait_for(marks: Iterable[StreamMarks], times: Counter, seconds: Counter) -> None:
    """Wait for the marks, which is one wait. If the device has passed them already, none is counted."""
    waited_s = 0.0
    for each in marks:
        waited_s += each.wait()
    if waited_s > 0:
        times.add()
        seconds.add(waited_s)
        flight.note(flight.FENCE_WAITED, int(waited_s * 1e6))


def finish(stream: int | None = None) -> None:
    """Return when what is on `stream`, by default this thread's current one, has run. It raises nothing.

    A fix comes here when its own code has failed, so ours is tried first and torch's wait for the whole device next.
    """
    try:
        device, current = current_place()
        device.synchronize(current if stream is None else stream)
    except Exception as error:
        _finish_by_torch(error)


def _finish_by_torch(ours: Exception) -> None:
    try:
        sys.modules["torch"].cuda.synchronize()
    except Exception as error:
        if "finish" not in _said:
            _said.add("finish")
            log.error(
                "the device could not be waited for, by us (%s) or by torch (%s), so buffers may be written "
                "while it reads them; usual cause: an earlier CUDA error. This is logged once",
                described(ours),
                described(error),
            )
