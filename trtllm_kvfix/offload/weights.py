"""Weights that change: what was computed with the old ones is no prefix of anything any more.

Training with refit loads new weights into a running engine (`WorkerExtension.update_weights`), which ends with
`reset_prefix_cache`; an extension of the user's own, or a server, may call the latter alone. Upstream then forgets what
the device's cache holds. The host tier learns of it here, and every reset counts as a change: nothing else tells.

These calls come from another thread, on every rank. Each only takes a note. The scheduler side applies it before it
decides anything else, so all ranks follow one decision. While the call lasts, nothing is looked up and nothing stored.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from trtllm_kvfix.living import Living
from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream

FUSE = "offload-weights"
RLHF = "tensorrt_llm.llmapi.rlhf_utils"  # imports Ray
OUTDATED = "the weights have changed since its blocks were stored"


class Weights:
    """The weights of one engine. Any thread notes that they change, and the scheduler side reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changing = 0  # calls that have not returned
        self.notes = 0  # whoever has seen fewer must forget what it knows of blocks

    @property
    def are_changing(self) -> bool:
        return self._changing > 0

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Note the change before and after: requests may end before upstream begins, and new ones come right after."""
        self._note(1)
        try:
            yield
        finally:
            self._note(-1)

    def _note(self, change: int) -> None:
        with self._lock:
            self.notes += 1
            self._changing += change


class WorkerSide(Protocol):
    """The part of the worker side that this module uses."""

    @property
    def weights(self) -> Weights: ...
    def end_what_runs(self) -> None: ...


_sides: Living[WorkerSide] = Living()


def watch(side: WorkerSide) -> None:
    """Note changes of its engine's weights from now on."""
    _sides.add(side)


def replacements() -> list[Replacement]:
    """Have upstream say when weights change. Nobody calls an extension that was imported after the engine was made."""
    up = Upstream()
    seams = [Seam(PY_EXECUTOR, "PyExecutor.reset_prefix_cache")]
    if RLHF in sys.modules:
        seams += [Seam(RLHF, f"WorkerExtension.{name}") for name in ("update_weights", "reset_prefix_cache")]
    return [Replacement(seam, noting) for seam in seams if up.has(seam.module, seam.path)]


def noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the executor, or of an extension of its worker, whose `engine` is the executor."""

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        sides = sides_of(self)
        with ExitStack() as stack:
            for side in sides:
                stack.enter_context(side.weights.changing())
            with guarded(FUSE):
                for side in sides:
                    side.end_what_runs()
            return original(self, *args, **kwargs)

    return changed


def sides_of(caller: Any) -> list[WorkerSide]:
    """Return the side of the caller's engine, or all sides if it cannot be found: forgetting too much harms nobody."""
    try:
        connector = getattr(caller, "engine", caller).kv_connector_manager
        if connector is None:
            return []
        found = connector.worker.side
        return [side for side in _sides.all() if side is found]
    except Exception as error:
        fuse.of(FUSE).fault(error)
        return _sides.all()
