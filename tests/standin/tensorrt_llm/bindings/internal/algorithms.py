"""The C++ schedulers: they get the bound manager as an argument, and read it past its Python side (surface 5).

Those of A and B charge whole prompts, and are the extension's. From B2 on they estimate reuse.
"""

from typing import Any

from ..._standin.extension import era
from ..._standin.variant import before


class EstimatingCapacityScheduler:
    """GUARANTEED_NO_EVICT: a request starts when the blocks that it may come to need are there."""

    def __init__(self, max_num_requests: int, capacity_scheduler_policy: Any, has_kv_cache_manager: bool) -> None:
        assert capacity_scheduler_policy.name == "GUARANTEED_NO_EVICT" and has_kv_cache_manager
        self.max_num_requests = max_num_requests

    def __call__(
        self, active_requests: list[Any], kv_cache_manager: Any, peft_cache_manager: Any = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns fitting, disagg generation init, paused."""
        del peft_cache_manager
        manager = kv_cache_manager
        running, arriving, pending = self._sorted_out(active_requests)
        blocks_left = manager.get_kv_cache_stats().free_num_blocks
        blocks_left -= sum(remaining(manager, request) for request in running)
        places_left = self.max_num_requests - len(running)
        fitting: tuple[list[Any], list[Any]] = ([], [])
        for requests, chosen in zip((arriving, pending), fitting, strict=True):
            for request in requests:
                needed = remaining(manager, request)
                if places_left == 0 or needed > blocks_left:
                    break
                blocks_left -= needed
                places_left -= 1
                chosen.append(request)
        for request in fitting[1]:
            request.estimated_reusable_tokens = manager.standin_estimate(request)
        return running + fitting[1], fitting[0], []

    def _sorted_out(self, active_requests: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Those that generate, that wait for a cache from elsewhere, and whose prompt is to be computed, begun or not.

        A request that waits for a connector's load has not reached the states of which any is scheduled.
        """
        running: list[Any] = []
        arriving: list[Any] = []
        pending: list[Any] = []
        for request in active_requests:
            if len(running) >= self.max_num_requests:
                break
            if request.is_disagg_generation_init_state:
                arriving.append(request)
            elif request.is_generation_in_progress_state:
                running.append(request)
            elif request.is_context_init_state:
                pending.append(request)
        return running, arriving, pending


def remaining(manager: Any, request: Any) -> int:
    return int(manager.get_remaining_blocks_to_completion(request, manager.standin_window))


class EstimatingMicroBatchScheduler:
    """Charges the reuse that was estimated, which need not be what the claim will find (#13318)."""

    def __init__(self, ctx_chunk_config: Any = None, max_context_length: int | None = None) -> None:
        del max_context_length
        self.chunk_unit = None if ctx_chunk_config is None else ctx_chunk_config.chunk_unit_size

    def __call__(
        self, active_requests: list[Any], inflight_request_ids: set[int], max_batch_size: int, max_num_tokens: int
    ) -> tuple[list[Any], list[Any]]:
        active = [request for request in active_requests if request.request_id not in inflight_request_ids]
        tokens_left = max_num_tokens
        contexts: list[Any] = []
        generations: list[Any] = []
        for request in active:
            if request.is_generation_in_progress_state and len(generations) < max_batch_size:
                tokens_left -= request.sampling_config.beam_width + request.num_draft_tokens
                generations.append(request)
        for request in active:
            if not request.is_context_init_state:
                continue
            if len(contexts) + len(generations) >= max_batch_size:
                break
            cost = self._take_chunk(request, tokens_left)
            if cost is None:
                break
            tokens_left -= cost
            contexts.append(request)
        return contexts, generations

    def _take_chunk(self, request: Any, tokens_left: int) -> int | None:
        """The tokens that the request is charged, or None if it does not fit. Its chunk is set where prefill is chunked
        alone."""
        remaining: int = request.context_remaining_length
        reusable = request.estimated_reusable_tokens if request.context_current_position == 0 else 0
        whole: int = reuse_adjusted_compute(remaining, reusable, remaining) + request.num_draft_tokens
        if self.chunk_unit is None:
            return whole if whole <= tokens_left else None
        if whole <= tokens_left:
            request.context_chunk_size = remaining
            return whole
        chunk = tokens_left - tokens_left % self.chunk_unit
        if chunk <= 0:
            return None
        request.context_chunk_size = chunk
        return reuse_adjusted_compute(chunk, reusable, remaining)


def reuse_adjusted_compute(chunk: int, reusable: int, remaining: int) -> int:
    """A chunk that is not the last is charged whole."""
    if reusable <= 0 or reusable + chunk < remaining:
        return chunk
    return max(0, remaining - reusable)


if before("B2"):
    CapacityScheduler: Any = era.CapacityScheduler
    MicroBatchScheduler: Any = era.MicroBatchScheduler
else:
    CapacityScheduler, MicroBatchScheduler = EstimatingCapacityScheduler, EstimatingMicroBatchScheduler
