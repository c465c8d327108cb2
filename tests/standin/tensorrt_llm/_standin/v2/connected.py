"""V2 with a connector, which late builds take: the query is Python's, and reports go by layer group."""

from types import SimpleNamespace
from typing import Any


class ConnectedV2:
    """A group for each pool. Their page indices are scopes of their own, and equal here."""

    kv_cache_map: dict[int, Any]
    kv_connector_manager: Any
    num_pools: int
    impl: Any
    tokens_per_block: int

    def get_kv_cache_layout(self) -> SimpleNamespace:
        """Upstream's has regions with addresses; there are no bytes behind the stand-in's pages."""
        groups = [SimpleNamespace(layer_group_id=pool, window_size=None, regions=[]) for pool in range(self.num_pools)]
        return SimpleNamespace(tokens_per_block=self.tokens_per_block, groups=groups)

    def get_page_indices_by_layer_group(self, request: Any) -> list[list[int]]:
        """Empty lists where the request has no cache any more: its end is reported nevertheless."""
        known = request.py_request_id in self.kv_cache_map
        pages = self.impl.pages_of(request.py_request_id) if known else []
        return [list(pages) for _ in range(self.num_pools)]

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
        manager, position = self.kv_connector_manager, request.context_current_position
        offered, is_async = manager.query_num_new_matched_tokens(request, position)
        honoured = min(offered, request.prompt_len - 1 - position)
        if honoured > 0:
            chunk = request.context_chunk_size
            request.context_chunk_size = request.prompt_len - position
            request.set_prepopulated_prompt_len(position + honoured, self.tokens_per_block)
            request.context_chunk_size = chunk
        manager.commit_new_matched_tokens(request, honoured, is_async)
        groups = self.get_page_indices_by_layer_group(request)
        manager.update_state_after_alloc(request, groups[0] if len(groups) == 1 else [], groups)
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
