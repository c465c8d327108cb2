"""Scheduling over the V2 manager (surface 5)."""

from typing import Any

from .scheduler import SchedulerOutput


class KVCacheV2DummyScheduler:
    """B: counts blocks as the manager reports them; allocation comes later, in `prepare_resources`."""

    def __init__(self, max_num_requests: int, kv_cache_manager: Any) -> None:
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager

    def schedule_request(self, active_requests: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        fitting = [r for r in active_requests if r.request_id in self.kv_cache_manager.kv_cache_map]
        blocks_left = blocks_to_spare(self.kv_cache_manager, fitting)
        for request in [r for r in active_requests if r not in fitting]:
            blocks_left -= self.kv_cache_manager.get_needed_resource_to_completion(request)
            if blocks_left < 0 or len(fitting) >= self.max_num_requests:
                break
            fitting.append(request)
        return [r for r in fitting if not r.is_generation_complete_state], [], []


class KVCacheV2Scheduler:
    """Allocates while it schedules (#11939), so what it counts is what it has."""

    def __init__(self, max_batch_size: int, max_num_tokens: int, kv_cache_manager: Any, chunk_unit: int | None) -> None:
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.kv_cache_manager = kv_cache_manager
        self.chunk_unit = chunk_unit

    def schedule_request(self, active_requests: list[Any], inflight_request_ids: set[int]) -> SchedulerOutput:
        output = SchedulerOutput()
        manager = self.kv_cache_manager
        active = [r for r in active_requests if r.request_id not in inflight_request_ids]
        tokens_left = self.max_num_tokens
        for request in active:
            if request.is_generation_in_progress_state and manager.try_allocate_generation(request):
                tokens_left -= 1 + request.num_draft_tokens
                output.generation_requests.append(request)
        for request in active:
            if not request.is_context_init_state:
                continue
            if len(output.generation_requests) + len(output.context_requests) >= self.max_batch_size:
                break
            if not self._has_cache(request, active) or not self._take_chunk(request, tokens_left):
                break
            tokens_left -= request.context_chunk_size
            output.context_requests.append(request)
        return output

    def _has_cache(self, request: Any, active: list[Any]) -> bool:
        manager = self.kv_cache_manager
        if request.request_id in manager.kv_cache_map:
            return True
        running = [r for r in active if r.request_id in manager.kv_cache_map]
        if len(manager.kv_cache_map) >= self.max_batch_size:
            return False
        if manager.get_needed_resource_to_completion(request) > blocks_to_spare(manager, running):
            return False
        return bool(manager.prepare_context(request))

    def _take_chunk(self, request: Any, tokens_left: int) -> bool:
        """Sets the chunk where prefill is chunked, and leaves it alone where it is not."""
        if self.chunk_unit is not None:
            request.context_chunk_size = request.context_remaining_length
        if request.context_chunk_size > tokens_left and self.chunk_unit is not None:
            end = request.context_current_position + tokens_left
            request.context_chunk_size = max(0, end - end % self.chunk_unit - request.context_current_position)
        if not 0 < request.context_chunk_size <= tokens_left:
            return False
        grow = getattr(self.kv_cache_manager, "resize_context", None)  # elsewhere the prompt has its pages
        return grow is None or bool(grow(request, request.context_chunk_size))


def blocks_to_spare(manager: Any, running: list[Any]) -> int:
    """Free blocks less those that the running requests may come to need."""
    promised = 0
    for request in running:
        held = len(manager.impl.pages_of(request.request_id))
        promised += max(0, manager.get_needed_resource_to_completion(request) - held)
    return int(manager.get_num_free_blocks()) - promised
