"""Requests that have ended while a connector still reads their blocks (surface 6.2)."""

from typing import Any

from .variant import since


class Saving:
    """Stored for reuse and pinned. In A the sequence itself goes at once, since then it stays as long as the pins."""

    def __init__(self, resource_manager: Any, kv_cache_manager: Any) -> None:
        self._resource_manager = resource_manager
        self._kv_cache_manager = kv_cache_manager
        self._pinned: dict[int, Any] = {}  # what the manager gave for the pins, by request

    def __len__(self) -> int:
        return len(self._pinned)

    def begin(self, request: Any) -> None:
        self._pinned[request.py_request_id] = self._kv_cache_manager.store_blocks_for_reuse(request, True)
        if not since("B"):
            self._resource_manager.free_resources(request)

    def end(self, request: Any) -> None:
        self._kv_cache_manager.unpin_blocks_by_id(self._pinned.pop(request.py_request_id))
        if since("B"):
            self._resource_manager.free_resources(request)
