"""The requests of a batch as the executor has them.

V1 asks for a prefix from C++, with the bound part of a request. That part lacks what Python keeps: the data of images.
So the connector notes the requests that are about to be prepared, and looks there.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER

WHOLE_REQUESTS = "offload-whole-requests"
PREPARE_RESOURCES = Seam(RESOURCE_MANAGER, "KVCacheManager.prepare_resources")


class WholeRequests:
    """The executor's thread alone uses it."""

    def __init__(self) -> None:
        self._requests: dict[int, Any] = {}

    def note(self, scheduled: Any) -> None:
        self._requests = {request.py_request_id: request for request in scheduled.context_requests}

    def whole(self, request: Any) -> Any:
        return self._requests.get(request.request_id, request)


def whole_requests_replacement() -> Replacement:
    return Replacement(PREPARE_RESOURCES, noting_the_batch)


def noting_the_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def prepare_resources(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        batch = getattr(getattr(getattr(self, "kv_connector_manager", None), "scheduler", None), "batch", None)
        if isinstance(batch, WholeRequests):
            with guarded(WHOLE_REQUESTS):  # after a fault the requests stay opaque
                batch.note(scheduled_batch)
        return original(self, scheduled_batch, *args, **kwargs)

    return prepare_resources
