"""Builds before #12673 offer what no forward step has computed (hazard H8). With the fix nobody reads it."""

from importlib import import_module
from itertools import count
from typing import Any

import pytest

from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken, as_it_was
from tests.standin.serving import Server
from trtllm_kvfix.overlay import fuse

FIX = "computed-blocks"
BLOCK = 4
PROMPT = list(range(32))
CONNECTOR = {
    "connector_module": "tests.standin.connector_double",
    "connector_scheduler_class": "Scheduler",
    "connector_worker_class": "Worker",
}
SMALL_CHUNKS = {"enable_chunked_prefill": True, "max_num_tokens": 8}


def chunked_server(**more: Any) -> Server:
    """Has a connector, because the loop checks the contents of blocks if there is one."""
    config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConnectorConfig(**CONNECTOR)
    return Server({**SMALL_CHUNKS, "kv_connector_config": config, **more})


class Prefill:
    """The manager alone, step by step."""

    def __init__(self, server: Server) -> None:
        self.server, self.manager = server, server.manager

    def batch(self, request: Any, chunk: int) -> Any:
        request.context_chunk_size = chunk
        batch = self.server.scheduled_requests()
        if hasattr(batch, "reset_context_requests"):
            batch.reset_context_requests([request])
        else:
            batch.context_requests = [request]
        return batch

    def chunk(self, request: Any, tokens: int) -> None:
        batch = self.batch(request, tokens)
        self.manager.prepare_resources(batch)
        request.move_to_next_context_chunk()
        self.manager.update_resources(batch)

    def matched(self, request_id: int) -> int:
        """Counts the tokens that another request with the same prompt is given."""
        other = self.server.request(request_id, PROMPT)
        self.manager.prepare_resources(self.batch(other, len(PROMPT)))
        found = int(other.prepopulated_prompt_len)
        other.is_dummy_request = True  # it leaves nothing behind
        self.manager.free_resources(other)
        return found


def cancelled_in_the_middle(server: Server, prompt: list[int]) -> None:
    """Cancels a request when the first of its four chunks has been computed."""
    request = server.request(1, prompt)
    said: list[int] = []

    def cancel() -> None:
        if request.context_current_position > 0 and not said:
            said.append(request.request_id)
            server.executor.enqueue_cancel_request(request.request_id)

    with server.pauses.at(server.pauses.CALL_SCHEDULE, cancel):
        (response,) = server.run([request])
    assert response.error_msg == "cancelled" and response.tokens == []


def corrupt_after_a_cancellation(seed: int) -> list[int]:
    """Each seed has a prompt of its own: memory that an earlier server left behind must not be right by chance."""
    prompt = [1000 * seed + token for token in PROMPT]
    server = chunked_server()
    cancelled_in_the_middle(server, prompt)
    server.serve([server.request(2, prompt)])
    assert server.executor.contents.reads > 0
    return list(server.executor.contents.corrupt)


@pytest.mark.parametrize("variant", ["A", "B", "B2"])
def test_a_prompt_that_was_cancelled_is_not_read_by_the_next(variant: str) -> None:
    with standing_in(variant):
        assert set(corrupt_after_a_cancellation(1)) == {2}
        with applied([FIX]):
            assert corrupt_after_a_cancellation(2) == []
        assert set(corrupt_after_a_cancellation(3)) == {2}


@pytest.mark.parametrize("variant", ["A", "B"])
def test_a_prompt_is_matched_when_its_last_chunk_is_done(variant: str) -> None:
    with standing_in(variant):
        control = Prefill(Server(SMALL_CHUNKS))
        control.chunk(control.server.request(1, PROMPT), 8)
        assert control.matched(2) > 8, "the control offers nothing that was not computed"
        with applied([FIX]):
            prefill = Prefill(Server(SMALL_CHUNKS))
            request = prefill.server.request(1, PROMPT)
            for done in range(0, len(PROMPT), 8):
                assert prefill.matched(100 + done) == 0
                prefill.chunk(request, 8)
            assert prefill.matched(2) == len(PROMPT) - BLOCK


def test_a_build_that_stores_by_position_is_left_to_it_when_that_was_seen() -> None:
    """B2 does, and shows it on the first prompt that is computed to its end."""
    with standing_in("B2"), applied([FIX]):
        prefill = Prefill(Server(SMALL_CHUNKS))
        first = prefill.server.request(1, PROMPT)
        second = prefill.server.request(2, [1000 + token for token in PROMPT])
        prefill.chunk(first, 8)
        assert prefill.matched(3) == 0, "it was not known yet"
        for _ in range(3):
            prefill.chunk(first, 8)
        assert first.context_current_position == len(PROMPT)
        prefill.manager.free_resources(first)
        prefill.chunk(second, 8)
        other = prefill.server.request(4, second.input_tokens)
        prefill.manager.prepare_resources(prefill.batch(other, len(PROMPT)))
        assert other.prepopulated_prompt_len == 8


def test_a_build_that_stores_whole_prompts_is_never_taken_for_another() -> None:
    """B shows it on its first prompt, and later prompts are held back as the first one was."""
    with standing_in("B"), applied([FIX]):
        prefill = Prefill(Server(SMALL_CHUNKS))
        first, second = prefill.server.request(1, PROMPT), prefill.server.request(2, [1000 + t for t in PROMPT])
        for request in (first, second):
            prefill.chunk(request, 8)
            other = prefill.server.request(10 + request.request_id, request.input_tokens)
            prefill.manager.prepare_resources(prefill.batch(other, len(PROMPT)))
            assert other.prepopulated_prompt_len == 0
            prefill.manager.free_resources(other)
            for _ in range(3):
                prefill.chunk(request, 8)


def test_where_windows_vary_nothing_is_asked() -> None:
    """The bound method asserts there, and the executor would end."""
    with standing_in("B2"), applied([FIX]):
        cache = {"max_attention_window": [16, 64]}
        prefill = Prefill(Server({**SMALL_CHUNKS, "kv_cache_config": cache}))
        assert prefill.manager.impl.is_variable_window
        prefill.chunk(prefill.server.request(1, PROMPT), len(PROMPT))
        assert fuse.of(FIX).faults == 0


@pytest.fixture(autouse=True)
def fresh_fuse() -> Any:
    fuse.reset(FIX)
    yield
    fuse.reset(FIX)


# ---- for the tests of all fixes (proofs.py) ----

ROOM = "fixes.computed_blocks"
BROKEN = Broken(f"{ROOM}.fix.ComputedBlocks.storing", as_it_was)
SEEDS = count(10)


def cancel_and_ask_again(_: Fault) -> None:
    assert corrupt_after_a_cancellation(next(SEEDS)) == []


PLACES = tuple(
    place
    for variant in ("A", "B", "B2")
    for place in (
        Fault(f"{ROOM}.fix._held_back", variant, cancel_and_ask_again),
        # Once for each prompt that is computed to its end, with calls in between that succeed.
        Fault(f"{ROOM}.fix.Observation.observe", variant, cancel_and_ask_again, stands_down=False),
    )
)
