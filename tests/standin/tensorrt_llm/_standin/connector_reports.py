"""What a connector is told of each request of a batch: what is new since the last time (surface 6.1)."""

from typing import Any

from .connector_api import RequestData, SchedulerOutput
from .variant import since


class Reports:
    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int]] = {}  # tokens and blocks, by request
        self.external_loads: dict[int, int] = {}  # tokens that a connector promised since the last batch

    def promised(self, request_id: int, tokens: int) -> None:
        self.external_loads[request_id] = tokens

    def of(self, batch: Any, loading: dict[int, Any], kv_cache_manager: Any) -> SchedulerOutput:
        """A request that loads is told of when it comes back."""
        output = SchedulerOutput()
        for request in batch.context_requests:
            if request.request_id in loading:
                continue
            is_new = request.request_id not in self._told
            data = self._of_one(request, kv_cache_manager, request.context_chunk_size)
            data.computed_position = request.context_current_position - self.external_loads.get(request.request_id, 0)
            (output.new_requests if is_new else output.cached_requests).append(data)
        for request in batch.generation_requests:
            drafts = len(request.py_draft_tokens) if since("D") else 0  # counted since then
            output.cached_requests.append(self._of_one(request, kv_cache_manager, 1 + drafts))
        self.external_loads.clear()
        return output

    def forget(self, request_id: int) -> None:
        """Upstream keeps them for ever; ids do not come back."""
        self._told.pop(request_id, None)

    def _of_one(self, request: Any, kv_cache_manager: Any, num_scheduled_tokens: int) -> RequestData:
        tokens, blocks = request.get_tokens(0), kv_cache_manager.get_cache_indices(request)
        tokens_told, blocks_told = self._told.get(request.request_id, (0, 0))
        self._told[request.request_id] = len(tokens), len(blocks)
        return RequestData(
            request_id=request.request_id,
            new_tokens=tokens[tokens_told:],
            new_block_ids=blocks[blocks_told:],
            computed_position=len(tokens) - 1,
            num_scheduled_tokens=num_scheduled_tokens,
        )
