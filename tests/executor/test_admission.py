"""With no overlay, admission overshoots max_num_tokens, and the loop dies of it unnoticed (hazard H3)."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.standin.admissions import EVAPORATION, SHARED_LEAF, arrive_between, fill_for_evaporation, leave_a_leaf
from tests.standin.fixture import upstream
from tests.standin.serving import Server

ESTIMATING = ["B2", "C", "D", "F"]  # their schedulers charge what is left of a prompt after the reuse that they expect
BY_TOKENS = ["C", "D", "F"]  # and count a block, too, of which only a part matches


def overshoots(server: Server, requests: list[object]) -> None:
    """The whole batch fails, the thread ends, health stays green, and nobody answers later requests."""
    responses = server.run(requests)
    for response in responses:
        assert "should be less than or equal to max_num_tokens" in response.error_msg
    executor = server.executor
    executor.worker_thread.join()
    with pytest.raises(AssertionError, match="Sampling failed"):
        raise executor.event_loop_error

    openai = import_module("tensorrt_llm.serve.openai_server").OpenAIServer("tiny", executor)
    assert asyncio.run(openai.health()).status_code == 200
    assert asyncio.run(openai.get_model()).status_code == 200
    later = executor.enqueue_requests([server.request(99, [1, 2, 3])])
    assert executor.await_responses(later, timeout=0) is None


def test_reuse_evaporates_where_sequences_are_added_one_by_one() -> None:
    with upstream("B2"):
        server = Server(EVAPORATION)
        overshoots(server, fill_for_evaporation(server))


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize("traffic", [fill_for_evaporation, arrive_between])
def test_a_scheduler_that_charges_whole_prompts_never_overshoots(
    variant: str, traffic: Callable[[Server], list[Any]]
) -> None:
    with upstream(variant):
        server = Server(EVAPORATION)
        responses = server.serve(traffic(server))
        assert [response.error_msg for response in responses] == [None] * len(responses)


@pytest.mark.parametrize("variant", ["A", "B"])
def test_what_evaporates_there_is_computed_again(variant: str) -> None:
    """20 tokens of the 40 that were cached when the batch was scheduled, in room for both prompts."""
    with upstream(variant):
        server = Server({**EVAPORATION, "max_num_tokens": 128})
        requests = fill_for_evaporation(server)
        server.serve(requests)
        assert [request.prepopulated_prompt_len for request in requests] == [0, 20]


@pytest.mark.parametrize("variant", ["C", "D", "F"])
def test_reuse_does_not_evaporate_where_the_batch_claims_first(variant: str) -> None:
    with upstream(variant):
        server = Server(EVAPORATION)
        responses = server.serve(fill_for_evaporation(server))
        assert [response.error_msg for response in responses] == [None, None]


@pytest.mark.parametrize("variant", ESTIMATING)
def test_reuse_evaporates_between_scheduling_and_admission_everywhere(variant: str) -> None:
    with upstream(variant):
        server = Server(EVAPORATION)
        arriving, *others = arrive_between(server)
        overshoots(server, [arriving, *others])


@pytest.mark.parametrize("variant", BY_TOKENS)
def test_a_leaf_promised_twice_overshoots_where_prefill_is_not_chunked(variant: str) -> None:
    with upstream(variant):
        server = Server(SHARED_LEAF)
        overshoots(server, leave_a_leaf(server))


@pytest.mark.parametrize("variant", ["C"])
def test_a_leaf_promised_twice_overshoots_with_chunked_prefill_too(variant: str) -> None:
    with upstream(variant):
        server = Server({**SHARED_LEAF, "enable_chunked_prefill": True})
        overshoots(server, leave_a_leaf(server))


@pytest.mark.parametrize("variant", ["D", "F"])
def test_later_builds_trim_chunks(variant: str) -> None:
    with upstream(variant):
        server = Server({**SHARED_LEAF, "enable_chunked_prefill": True})
        responses = server.serve(leave_a_leaf(server))
        assert [response.error_msg for response in responses] == [None, None]
