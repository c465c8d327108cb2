"""A request ends while a connector loads its prompt: its blocks have not been filled (hazard H8)."""

from importlib import import_module
from typing import Any

import pytest

from tests.fixes.applied import applied, standing_in
from tests.standin import connector_double
from tests.standin.serving import Server
from trtllm_kvfix.fixes.computed_blocks import fix as computed_blocks
from trtllm_kvfix.overlay import fuse

FIX = "computed-blocks"
VARIANTS = ("A", "B", "B2", "C", "D", "F")
BY_POSITION = ("C", "D", "F")
BLOCK = 4
PROMPT = list(range(32))
LOADED = 16


def server_with(**offer: Any) -> Server:
    """A server whose connector loads this for the first request."""
    config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConnectorConfig(**connector_double.CONFIG)
    server = Server({"enable_chunked_prefill": True, "kv_connector_config": config})
    vars(server.executor.kv_connector_manager.scheduler).update({"only": {1}, **offer})
    return server


def batch_of(server: Server, request: Any) -> Any:
    batch = server.scheduled_requests()
    if hasattr(batch, "reset_context_requests"):
        batch.reset_context_requests([request])
    else:
        batch.context_requests = [request]
    return batch


def matched_after(server: Server, chunks: int) -> int:
    """Counts the tokens that the next request finds of the prompt of one that ended early."""
    request, other = server.request(1, PROMPT), server.request(2, PROMPT)
    server.manager.prepare_resources(batch_of(server, request))
    for _ in range(chunks):
        request.context_chunk_size = BLOCK
        request.move_to_next_context_chunk()
        server.manager.update_resources(batch_of(server, request))
    server.manager.free_resources(request)
    server.manager.prepare_resources(batch_of(server, other))
    return int(other.prepopulated_prompt_len)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_load_that_never_came_is_not_offered(variant: str) -> None:
    with standing_in(variant):
        assert matched_after(server_with(matched=LOADED, is_async=True), 0) >= LOADED, "the control offers nothing"
        with applied([FIX]):
            assert matched_after(server_with(matched=LOADED, is_async=True), 0) == 0


@pytest.mark.parametrize("variant", BY_POSITION)
def test_what_was_computed_behind_a_load_is_offered_as_before(variant: str) -> None:
    """The prompt continues only when the load has ended."""
    with standing_in(variant), applied([FIX]):
        assert matched_after(server_with(matched=LOADED, is_async=True), 1) == LOADED + BLOCK
        assert matched_after(server_with(matched=0), 2) == 2 * BLOCK


@pytest.mark.parametrize("variant", BY_POSITION)
def test_a_fault_of_ours_offers_nothing(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(_request: Any) -> bool:
        raise OSError("injected")

    monkeypatch.setattr(computed_blocks, "has_computed_nothing", raises)
    with standing_in(variant), applied([FIX]):
        assert matched_after(server_with(matched=LOADED, is_async=True), 0) == 0
        assert fuse.of(FIX).faults == 1
