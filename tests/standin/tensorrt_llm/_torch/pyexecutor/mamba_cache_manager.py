"""A hybrid model: attention's cache and a state for each sequence (surface 1.1)."""

from typing import Any

from .resource_manager import KVCacheManager


class MambaHybridCacheManager(KVCacheManager):
    """Overrides what it adds to, and calls upstream's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state_of: dict[int, int] = {}
        self._free_states = list(range(self.max_batch_size))

    def prepare_resources(self, scheduled_batch: Any) -> None:
        super().prepare_resources(scheduled_batch)
        for request in scheduled_batch.context_requests:
            if request.py_request_id not in self.state_of:
                self.state_of[request.py_request_id] = self._free_states.pop(0)

    def free_resources(self, request: Any, pin_on_release: bool = False) -> None:
        super().free_resources(request, pin_on_release)
        if request.py_request_id in self.state_of:
            self._free_states.append(self.state_of.pop(request.py_request_id))
