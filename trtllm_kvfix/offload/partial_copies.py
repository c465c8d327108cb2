"""The copies that upstream makes where a prompt matches the beginning of a block, and loads that must come after them.

Upstream enqueues them on streams of its own while it allocates, and lets the stream of its block manager wait for them.
The stream that a connector is given follows that one with the next forward only. A load that starts sooner writes a
block that was cached a moment ago and is still being copied from, and the copy brings foreign values.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR

PART = "offload-partial-copies"
SEAM = Seam(PY_EXECUTOR, "PyExecutor._kv_connector_start_batch")


def replacement() -> Replacement:
    """Have upstream's executor tell the connector's worker of its cache manager."""
    return Replacement(SEAM, telling_the_worker)


def telling_the_worker(original: Callable[..., Any]) -> Callable[..., Any]:
    def _kv_connector_start_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker: Any = getattr(getattr(self, "kv_connector_manager", None), "worker", None)
        if hasattr(worker, "note_cache_manager"):
            with guarded(PART) as told:
                worker.note_cache_manager(self.kv_cache_manager)
            worker.copies_unknown = told.failed
        return original(self, *args, **kwargs)

    return _kv_connector_start_batch


def stream_behind_copies(kv_cache_manager: Any) -> Any:
    """The stream of its block manager. None where it has none that we know: V1 and V2 have had one since 1.1."""
    return getattr(kv_cache_manager, "_stream", None)
