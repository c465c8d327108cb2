"""A connector gets, for each request of a batch, what is new since the last report (surface 6.1)."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .connector_api import RequestData, SchedulerOutput
from .variant import since


@dataclass
class Told:
    """The reports about one request over all of its life, and about the next one that gets its id."""

    tokens: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    block_ids_by_layer_group: list[list[int]] = field(default_factory=list)

    def report(self, request: Any, kv_cache_manager: Any) -> RequestData:
        tokens = request.get_tokens(0)
        in_context = request.state.name in ("CONTEXT_INIT", "DISAGG_GENERATION_TRANS_IN_PROGRESS")
        drafts = len(request.py_draft_tokens) if since("D") else 0  # counted since then
        data = RequestData(
            request_id=request.request_id,
            new_tokens=tokens[len(self.tokens) :],
            new_block_ids=[],
            computed_position=request.context_current_position if in_context else len(tokens) - 1,
            num_scheduled_tokens=1 + drafts,
        )
        if in_context:
            data.num_scheduled_tokens = min(request.context_remaining_length, request.context_chunk_size)
        self.tokens += data.new_tokens
        if hasattr(kv_cache_manager, "get_page_indices_by_layer_group"):
            self._report_groups(data, kv_cache_manager.get_page_indices_by_layer_group(request))
        else:
            data.new_block_ids = kv_cache_manager.get_cache_indices(request)[len(self.block_ids) :]
            if since("D"):
                data.block_hashes = kv_cache_manager.commit_and_get_block_hashes(request)
        self.block_ids += data.new_block_ids
        if since("D"):
            data.cache_salt = request.cache_salt
        return data

    def _report_groups(self, data: RequestData, indices_by_group: list[list[int]]) -> None:
        """Several groups share no list, so the flat one stays empty."""
        told = self.block_ids_by_layer_group
        told += [[] for _ in indices_by_group[len(told) :]]
        data.new_block_ids_by_layer_group = [
            indices[len(before) :] for before, indices in zip(told, indices_by_group, strict=True)
        ]
        for before, new in zip(told, data.new_block_ids_by_layer_group, strict=True):
            before.extend(new)
        if len(indices_by_group) == 1:
            data.new_block_ids = data.new_block_ids_by_layer_group[0]


class SchedulerOutputManager:
    def __init__(self) -> None:
        self.requests: defaultdict[int, Told] = defaultdict(Told)  # for ever, where nothing resets it
        self.external_loads: dict[int, int] = {}  # tokens that a connector promised since the last batch

    def record_new_matched_tokens(self, request: Any, num_new_matched_tokens: int) -> None:
        self.external_loads[request.request_id] = num_new_matched_tokens

    def build_scheduler_output(self, batch: Any, new_async_requests: Any, kv_cache_manager: Any) -> SchedulerOutput:
        """A request that loads is reported when it comes back."""
        output = SchedulerOutput()
        for request in batch.context_requests:
            if request.request_id in new_async_requests.loading:
                continue
            known = request.request_id in self.requests
            data = self.requests[request.request_id].report(request, kv_cache_manager)
            data.computed_position -= self.external_loads.get(request.request_id, 0)
            (output.cached_requests if known else output.new_requests).append(data)
        for request in batch.generation_requests:
            output.cached_requests.append(self.requests[request.request_id].report(request, kv_cache_manager))
        self.external_loads = {}
        return output

    if since("D"):

        def reset_request(self, request_id: int) -> None:
            """Its allocation is gone, so earlier reports about it mean nothing any more."""
            self.requests.pop(request_id, None)
            self.external_loads.pop(request_id, None)
