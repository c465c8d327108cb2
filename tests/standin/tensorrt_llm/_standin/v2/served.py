"""How V2 takes a prefix from a connector that answers, written after source that is newer than F's. Pages for a chunk
are there when it asks, and the answer moves the request past some of them."""

from typing import Any

from ..variant import MANGLED, since


class ServedPrefixes:
    """Nothing is asked about the same allocation twice, so a request that has loaded is not asked about again."""

    impl: Any
    kv_cache_map: dict[int, Any]
    kv_connector_manager: Any
    enable_block_reuse: bool
    is_draft: bool
    tokens_per_block: int

    if since("F"):

        def probe_context_reuse(self, request: Any) -> int | None:
            """None where there is no match to look for: reuse is off, or the request has a cache."""
            if not self.enable_block_reuse or request.py_request_id in self.kv_cache_map:
                return None
            return int(self.impl.probe_reuse(request.get_tokens(0)[: request.prompt_len - 1], request.cache_salt_id))

        def resize_context(self, request: Any, num_tokens: int) -> bool:
            kv_cache = self.kv_cache_map[request.py_request_id]
            return bool(kv_cache.resize(max(kv_cache.capacity, request.context_current_position + num_tokens)))

        def _stale_block_range(self, group: int, history_length: int) -> tuple[int, int]:
            begin, end = self.impl.stale(group, history_length)
            return begin, end

        def _connector_may_serve(self, request: Any) -> bool:
            return self.kv_connector_manager is not None and not self.is_draft and not request.is_dummy_request

        def _apply_connector_matched_prefix(self, request: Any) -> bool:
            """Whether the request's chunk was moved. The connector hears how much of its answer is used."""
            if not self._connector_may_serve(request):
                return False
            kv_cache = self.kv_cache_map[request.py_request_id]
            begin = kv_cache.num_committed_tokens
            offered, is_async = self.kv_connector_manager.query_num_new_matched_tokens(request, begin)
            position = self._fitted(request, kv_cache, begin, min(begin + offered, request.prompt_len - 1))
            self.kv_connector_manager.commit_new_matched_tokens(request, position - begin, is_async)
            return bool(position > begin)

        def _fitted(self, request: Any, kv_cache: Any, begin: int, offered_end: int) -> int:
            """Up to where the prefix is taken: all of it, with a chunk behind it; or the whole blocks that lie in the
            chunk for which there are pages; or nothing."""
            chunk, size = request.context_chunk_size, self.tokens_per_block
            end = min(begin + chunk, request.prompt_len)
            if offered_end < end:
                ways = [(offered_end, end)]
            else:
                moved = min(offered_end + chunk, request.prompt_len)
                moved -= moved % size if moved < request.prompt_len else 0
                ways = [(offered_end, moved), ((end - 1) // size * size, end)]
            for position, until in ways:
                if begin < position < until and self._resize_for_connector_prefix(request, kv_cache, position, until):
                    request.context_chunk_size = request.prompt_len - request.context_current_position
                    request.set_prepopulated_prompt_len(position, size)
                    request.context_chunk_size = until - position
                    return position
            return begin

        def _resize_for_connector_prefix(self, request: Any, kv_cache: Any, position: int, end: int) -> bool:
            del request
            return bool(kv_cache.resize(max(kv_cache.capacity, end), position))

    elif MANGLED:

        def _resize_for_connector_prefix(self, plan: Any) -> bool:  # type: ignore[misc]  # by variant
            return bool(self.kv_cache_map[plan.request_id].resize(plan.capacity))
