"""Connectors of builds of 1.2 over our manager: what they are asked, and what becomes of what they bring."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.managers.making import bench
from trtllm_kvfix.managers.capacity import scheduler_for


class Connector:
    """Has 4 tokens behind those that are reported to it as computed."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        assert not hasattr(request, "py_request_id"), "C++ hands out its own half"
        self.asked.append((request.request_id, num_computed_tokens))
        return 4


def test_a_connector_is_asked_about_each_request_behind_what_is_reused() -> None:
    connector = Connector()
    with bench(kv_connector_manager=connector) as b:
        b.served(1, range(10))
        request = b.request(2, range(20))
        request.py_request_id = 2
        request.context_chunk_size = 20
        b.prepare([request])
        assert connector.asked == [(1, 0), (2, 10)]
        assert request.context_current_position == 14
        dummy = b.request(3, [1] * 8)
        dummy.is_dummy_request = True
        b.impl.add_sequence(3, 8, 1, dummy)
        assert len(connector.asked) == 2
        assert b.cached(range(20)) == 8, "what is being loaded cannot be found, and the part of a block has an owner"
        request.move_to_next_context_chunk()
        b.impl.store_context_blocks(request)
        assert b.cached(range(21)) == 20, "with what the connector has brought"


def test_chunks_of_a_prompt_whose_load_has_failed_are_not_stored_before_they_are_computed() -> None:
    """It is put back to what was reused. In the overlap loop a second chunk is enqueued before the first report."""
    with bench(kv_connector_manager=Connector()) as b:
        request = b.request(1, range(20))
        b.prepare([request])
        assert request.context_current_position == 4
        request.context_current_position = 0
        for size in (4, 8):
            b.prepare()
            request.context_chunk_size = size
            request.move_to_next_context_chunk()
        b.impl.store_context_blocks(request)
        assert b.cached(range(20)) <= 4


def test_a_request_that_a_connector_refuses_can_be_removed() -> None:
    def refuses(_request: Any, _computed: int) -> int:
        raise RuntimeError("no leader")

    with bench(kv_connector_manager=SimpleNamespace(get_num_new_matched_tokens=refuses)) as b:
        requests = [b.request(n, range(10 * n, 10 * n + 8)) for n in (1, 2)]
        with pytest.raises(RuntimeError, match="no leader"):
            b.prepare(requests)
        for each in requests:
            b.impl.remove_sequence(each.request_id, each, False)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 16


def test_a_request_whose_load_runs_keeps_its_claim_on_what_it_will_grow_by() -> None:
    """It does not count as running, and would be overtaken."""
    with bench(blocks=8, kv_connector_manager=Connector()) as b:
        loading = b.request(1, range(16))
        b.prepare([loading])
        loading.state = b.era.LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS
        policy = scheduler_for(8, b.impl)
        assert policy is not None
        late = b.request(2, range(100, 104))
        assert policy.schedule_request([loading, late])[0] == []
