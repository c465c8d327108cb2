"""The copies that upstream makes if a prompt matches the beginning of a block, and the loads that must come after them.

Upstream enqueues them on streams of its own while it allocates, and lets the stream of its block manager wait for them.
A connector gets another stream, which follows that one only from the next forward pass. A load that starts sooner
writes a block that was cached a moment ago and is still being copied from. Then the copy has values of the load.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR

PARTIAL_COPIES = "offload-partial-copies"
START_BATCH = Seam(PY_EXECUTOR, "PyExecutor._kv_connector_start_batch")


def partial_copies_replacement() -> Replacement:
    """Make upstream's executor pass its cache manager to the connector's worker."""
    return Replacement(START_BATCH, telling_the_worker)


def telling_the_worker(original: Callable[..., Any]) -> Callable[..., Any]:
    def _kv_connector_start_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker: Any = getattr(getattr(self, "kv_connector_manager", None), "worker", None)
        if hasattr(worker, "note_cache_manager"):
            with guarded(PARTIAL_COPIES) as told:
                worker.note_cache_manager(self.kv_cache_manager)
            worker.copies_unknown = told.failed
        return original(self, *args, **kwargs)

    return _kv_connector_start_batch


def stream_behind_copies(kv_cache_manager: Any) -> Any:
    """The stream of its block manager. None if it has none that we know: V1 and V2 have had one since 1.1."""
    return getattr(kv_cache_manager, "_stream", None)
