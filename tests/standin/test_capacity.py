"""With few blocks, requests run as upstream's GUARANTEED_NO_EVICT has it, in every variant."""

import pytest

from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server

BLOCKS, TOKENS_PER_BLOCK = 6, 4
LLM_ARGS = {"kv_cache_config": {"tokens_per_block": TOKENS_PER_BLOCK, "max_tokens": BLOCKS * TOKENS_PER_BLOCK}}


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_who_generates_is_taken_without_a_question(variant: str) -> None:
    """A prompt whose load is over, or that has begun, waits in its turn. A load that runs is not looked at."""
    with upstream(variant):
        server = Server(LLM_ARGS)
        older, loading, loaded = (server.request(n, list(range(100 * n, 100 * n + 8)), 8) for n in (1, 2, 3))
        states = server.requests.LlmRequestState
        batch = server.scheduled_requests()
        for request in (loading, loaded):
            request.context_chunk_size = request.prompt_len
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests([loading, loaded])
        else:
            batch.context_requests = [loading, loaded]
        server.manager.prepare_resources(batch)
        loading.state = states.DISAGG_GENERATION_TRANS_IN_PROGRESS
        capacity = server.executor.scheduler.capacity_scheduler

        def fitting(*active: object) -> list[int]:
            return [request.request_id for request in capacity.schedule_request(list(active))[0]]

        assert fitting(loading, loaded) == [3]
        assert fitting(loading, older) == [], "it takes 4 blocks, and 2 are free"
        assert fitting(older, loaded) == [], "the first without room ends the search"
        loaded.move_to_next_context_chunk()
        assert fitting(older, loaded) == []
        loaded.state = states.GENERATION_IN_PROGRESS
        assert fitting(older, loaded) == [3]
        server.close()
