"""Write the flight record to a JSON file when the executor's loop ends with an exception.

Upstream's exception passes through unchanged.
"""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.metrics import flight
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream
from trtllm_kvfix.runtime_files import folder_of

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation

log = logging.getLogger("trtllm_kvfix")

TRIGGER = PY_EXECUTOR
LOOP = "PyExecutor._event_loop_wrapper"
SUFFIX = ".flight.json"


def replacements(active: "Activation") -> list[Replacement]:
    return [Replacement(Seam(TRIGGER, LOOP), partial(recording, active))] if Upstream().has(TRIGGER, LOOP) else []


def recording(active: "Activation", original: Callable[..., Any]) -> Callable[..., Any]:
    def _event_loop_wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _dump(active, error)
            raise

    return _event_loop_wrapper


def _dump(active: "Activation", error: BaseException) -> None:
    flight.note(flight.LOOP_FAILED, text=type(error).__name__)
    try:
        file = write(folder_of(active.settings), f"{type(error).__name__}: {error}")
    except Exception:
        log.exception("the flight record could not be written")
    else:
        log.error("the executor's loop ended with %s; the flight record is in %s", type(error).__name__, file)


def write(folder: Path, why: str) -> Path:
    """It stays when the process ends."""
    file = folder / f"{os.getpid()}{SUFFIX}"
    document = {"pid": os.getpid(), "why": why, "entries": flight.recorder().entries()}
    file.write_text(json.dumps(document, indent=1))
    return file
