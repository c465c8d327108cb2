"""The synchronous path: wait until the device has done what was enqueued, with whatever still works."""

import logging
import sys

from trtllm_kvfix.staging import current_place

log = logging.getLogger("trtllm_kvfix")

_said: set[str] = set()


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
                "the device could not be waited for, by us (%s: %s) or by torch (%s: %s), so buffers may be written "
                "while it reads them; usual cause: an earlier CUDA error. This is said once",
                type(ours).__name__,
                ours,
                type(error).__name__,
                error,
            )
