"""Which requests run next: capacity first, then the token budget (surface 5)."""

from dataclasses import dataclass, field
from typing import Any

from ..._standin.batches import ChunkLists, PlainLists
from ..._standin.variant import since

ScheduledRequests: Any = ChunkLists if since("C") else PlainLists


@dataclass
class SchedulerOutput:
    context_requests: list[Any] = field(default_factory=list)
    generation_requests: list[Any] = field(default_factory=list)
    paused_requests: list[Any] = field(default_factory=list)
    fitting_disagg_gen_init_requests: list[Any] = field(default_factory=list)
    num_fitting_requests: int = 0


class BindCapacityScheduler:
    """GUARANTEED_NO_EVICT: a request starts when the blocks that it may come to need are there."""

    def __init__(self, max_num_requests: int, kv_cache_manager: Any) -> None:
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager  # the bound one (surface 3.2)

    def schedule_request(self, active_requests: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns fitting, disagg generation init, paused."""
        manager = self.kv_cache_manager
        blocks_left = manager.get_num_free_blocks()
        fitting: list[Any] = []
        arriving: list[Any] = []
        running = [r for r in active_requests if r.is_generation_in_progress_state or r.context_current_position > 0]
        for request in running:
            blocks_left -= manager.get_remaining_blocks_to_completion(request, manager.window)
            if request.is_context_init_state or request.is_generation_in_progress_state:
                fitting.append(request)
        waiting = [r for r in active_requests if r not in running]
        for request in waiting:
            if not (request.is_context_init_state or request.is_disagg_generation_init_state):
                continue
            needed = manager.get_remaining_blocks_to_completion(request, manager.window)
            if len(fitting) + len(arriving) >= self.max_num_requests or needed > blocks_left:
                break
            blocks_left -= needed
            if request.is_disagg_generation_init_state:
                arriving.append(request)
                continue
            request.estimated_reusable_tokens = manager.estimate_reuse(request)
            fitting.append(request)
        return fitting, arriving, []


class BindMicroBatchScheduler:
    """Charges the reuse that was estimated, which need not be what the claim will find (surface 5, #13318)."""

    def __init__(self, max_batch_size: int, max_num_tokens: int, chunk_unit: int | None = None) -> None:
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.chunk_unit = chunk_unit  # tokens per block where prefill is chunked

    def schedule(self, active_requests: list[Any]) -> tuple[list[Any], list[Any]]:
        tokens_left = self.max_num_tokens
        contexts: list[Any] = []
        generations: list[Any] = []
        for request in active_requests:
            if request.is_generation_in_progress_state and len(generations) < self.max_batch_size:
                tokens_left -= request.sampling_config.beam_width + len(request.draft_tokens)
                generations.append(request)
        for request in active_requests:
            if not request.is_context_init_state:
                continue
            if len(contexts) + len(generations) >= self.max_batch_size:
                break
            cost = self._take_chunk(request, tokens_left)
            if cost is None:
                break
            tokens_left -= cost
            contexts.append(request)
        return contexts, generations

    def _take_chunk(self, request: Any, tokens_left: int) -> int | None:
        """Sets the request's chunk and returns what it is charged; None where it does not fit."""
        remaining = request.context_remaining_length
        reusable = request.estimated_reusable_tokens if request.context_current_position == 0 else 0
        whole = reuse_adjusted_compute(remaining, reusable, remaining) + len(request.draft_tokens)
        if whole <= tokens_left:
            request.context_chunk_size = remaining
            return whole
        if self.chunk_unit is None:
            return None
        chunk = tokens_left - tokens_left % self.chunk_unit
        if chunk <= 0:
            return None
        request.context_chunk_size = chunk
        return reuse_adjusted_compute(chunk, reusable, remaining)


def reuse_adjusted_compute(chunk: int, reusable: int, remaining: int) -> int:
    """Surface 5: a chunk that is not the last is charged whole."""
    if reusable <= 0 or reusable + chunk < remaining:
        return chunk
    return max(0, remaining - reusable)


class SimpleScheduler:
    def __init__(self, capacity_scheduler: Any, micro_batch_scheduler: Any) -> None:
        self.capacity_scheduler = capacity_scheduler
        self.micro_batch_scheduler = micro_batch_scheduler

    def schedule_request(self, active_requests: list[Any], inflight_request_ids: set[int]) -> SchedulerOutput:
        active = [request for request in active_requests if request.request_id not in inflight_request_ids]
        fitting, arriving, paused = self.capacity_scheduler.schedule_request(active)
        contexts, generations = self.micro_batch_scheduler.schedule(fitting)
        return SchedulerOutput(contexts, generations, paused, arriving, len(fitting))
