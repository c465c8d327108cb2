"""The C++ schedulers: they get the bound manager as an argument, and read it past its Python side (surface 5)."""

from typing import Any

from ..._standin.variant import since


class CapacityScheduler:
    """GUARANTEED_NO_EVICT: a request starts when the blocks that it may come to need are there."""

    def __init__(self, max_num_requests: int, capacity_scheduler_policy: str, has_kv_cache_manager: bool) -> None:
        assert capacity_scheduler_policy == "GUARANTEED_NO_EVICT" and has_kv_cache_manager
        self.max_num_requests = max_num_requests

    def __call__(
        self, active_requests: list[Any], kv_cache_manager: Any, peft_cache_manager: Any = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns fitting, disagg generation init, paused."""
        del peft_cache_manager
        manager = kv_cache_manager
        blocks_left = manager.get_num_free_blocks()
        fitting: list[Any] = []
        arriving: list[Any] = []
        running = [r for r in active_requests if r.is_generation_in_progress_state or r.context_current_position > 0]
        for request in running:
            blocks_left -= manager.get_remaining_blocks_to_completion(request, manager.window)
            if request.is_context_init_state or request.is_generation_in_progress_state:
                fitting.append(request)
        for request in [r for r in active_requests if r not in running]:
            if not (request.is_context_init_state or request.is_disagg_generation_init_state):
                continue
            blocks_left -= manager.get_remaining_blocks_to_completion(request, manager.window)
            if len(fitting) + len(arriving) >= self.max_num_requests or blocks_left < 0:
                break
            if request.is_disagg_generation_init_state:
                arriving.append(request)
                continue
            if since("B2"):
                known = manager._knows(request)  # it was put off, or a load of a connector has brought its blocks
                request.estimated_reusable_tokens = 0 if known else manager._estimate_reuse(request)
            fitting.append(request)
        return fitting, arriving, []


class MicroBatchScheduler:
    """Charges the reuse that was estimated, which need not be what the claim will find (#13318)."""

    def __init__(self, ctx_chunk_config: int | None, max_num_tokens: int) -> None:
        """ctx_chunk_config: tokens per block where prefill is chunked."""
        self.chunk_unit = ctx_chunk_config
        self.max_num_tokens = max_num_tokens

    def __call__(
        self, active_requests: list[Any], inflight_request_ids: set[int], max_batch_size: int, max_num_tokens: int
    ) -> tuple[list[Any], list[Any]]:
        active = [request for request in active_requests if request.request_id not in inflight_request_ids]
        tokens_left = max_num_tokens
        contexts: list[Any] = []
        generations: list[Any] = []
        for request in active:
            if request.is_generation_in_progress_state and len(generations) < max_batch_size:
                tokens_left -= request.sampling_config.beam_width + len(request.draft_tokens)
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
        """Sets the request's chunk and returns what it is charged; None where it does not fit."""
        remaining = request.context_remaining_length
        begins = request.context_current_position == 0
        reusable = request.estimated_reusable_tokens if begins and since("B2") else 0
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
    """A chunk that is not the last is charged whole."""
    if reusable <= 0 or reusable + chunk < remaining:
        return chunk
    return max(0, remaining - reusable)
