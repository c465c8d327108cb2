"""V2 with a connector, which late builds take: the query is Python's, and reports go by layer group."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class ConnectedV2:
    """A group for each pool. Their page indices are scopes of their own, and equal where no window slides."""

    kv_cache_map: dict[int, Any]
    kv_connector_manager: Any
    num_pools: int
    impl: Any
    tokens_per_block: int
    _apply_connector_matched_prefix: Callable[[Any], bool]

    def get_kv_cache_layout(self) -> SimpleNamespace:
        """Upstream's has regions with addresses; there are no bytes behind the stand-in's pages."""
        windows = [self.impl.window_of(pool) for pool in range(self.num_pools)]
        groups = [
            SimpleNamespace(layer_group_id=pool, window_size=window, regions=[]) for pool, window in enumerate(windows)
        ]
        return SimpleNamespace(tokens_per_block=self.tokens_per_block, groups=groups)

    def get_page_indices_by_layer_group(self, request: Any) -> list[list[int]]:
        """Empty lists where the request has no cache any more: its end is reported nevertheless."""
        known = request.py_request_id in self.kv_cache_map
        return [
            list(self.impl.pages_of(request.py_request_id, pool)) if known else [] for pool in range(self.num_pools)
        ]

    def ask_connector(self, scheduled_batch: Any) -> None:
        """Asks once for each allocation: a request that is loading, or has loaded, is not asked about again."""
        if self.kv_connector_manager is None:
            return
        for request in scheduled_batch.context_requests:
            reported = getattr(request, "py_connector_allocation_reported", False)
            if request.is_first_context_chunk and not reported:
                self._ask_about(request)
        scheduled_batch.reset_context_requests()

    def _ask_about(self, request: Any) -> None:
        self._apply_connector_matched_prefix(request)
        groups = self.get_page_indices_by_layer_group(request)
        flat = groups[0] if len(groups) == 1 else []
        self.kv_connector_manager.update_state_after_alloc(request, flat, groups)
        request.py_connector_allocation_reported = True

    def report_batch_to_connector(self, scheduled_batch: Any, *, finalize_prefix_reservations: bool = True) -> None:
        del finalize_prefix_reservations  # the stand-in reserves nothing
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.build_scheduler_output(scheduled_batch, self)

    def forget_connector_state(self, request: Any) -> None:
        """The allocation is gone, and with it all that was reported about it."""
        if self.kv_connector_manager is not None:
            request.py_connector_allocation_reported = False
            self.kv_connector_manager.reset_request_state(request)
