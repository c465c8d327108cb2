"""Requests that have ended while a connector still reads their blocks (surface 6.2)."""

from typing import Any

from .._torch.pyexecutor.llm_request import LlmRequestState
from .variant import since


class AsyncTransferManager:
    """Stores and pins what is in transfer. Since B each transfer is counted; A counts none."""

    def __init__(self, kv_cache_manager: Any, *, should_store_blocks: bool) -> None:
        self.kv_cache_manager = kv_cache_manager
        self.should_store_blocks = should_store_blocks
        self._requests: dict[int, Any] = {}
        self._pins: dict[int, Any] = {}  # what the manager gave for them
        self._transfers: dict[int, int] = {}

    def requests_in_transfer(self) -> dict[int, Any]:
        return self._requests

    def start_transfer(self, request: Any) -> None:
        request_id = request.py_request_id
        if request_id not in self._requests:
            request.state = LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS
            store = self.kv_cache_manager.store_blocks_for_reuse
            self._pins[request_id] = store(request, True) if self.should_store_blocks else None
            self._requests[request_id] = request
        self._transfers[request_id] = self._transfers.get(request_id, 0) + 1

    def end_transfer(self, request: Any) -> bool:
        """Whether that was the last: then the request may be terminated."""
        request_id = request.py_request_id
        if request_id not in self._requests:
            return False  # upstream warns
        self._transfers[request_id] -= 1
        if self._transfers[request_id] > 0:
            return False
        del self._transfers[request_id], self._requests[request_id]
        pins = self._pins.pop(request_id)
        if pins is not None:
            self.kv_cache_manager.unpin_blocks_by_id(pins)
        if since("B"):
            request.state = LlmRequestState.DISAGG_CONTEXT_COMPLETE
        return True
