"""The V1 manager asks the bound manager in upstream's order (surface 1.3), and the loop keeps its own."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server

FENCE, REFRESH = "sync_transfer_manager_with_buffer_manager", "refresh_blocks"
ADD, BATCH, GROW, RESET = "add_sequence", "add_sequence_batch", "add_token", "reset_context_requests"

# Two contexts with one draft token each, and one generation without.
EXPECTED = {
    "A": [ADD, GROW, ADD, GROW, GROW],
    "B": [FENCE, ADD, GROW, ADD, GROW, GROW, REFRESH],
    "B2": [FENCE, ADD, GROW, ADD, GROW, RESET, GROW, REFRESH],
    "C": [FENCE, BATCH, GROW, GROW, RESET, GROW, REFRESH],
    "D": [FENCE, BATCH, GROW, GROW, GROW, REFRESH, RESET],
    "F": [FENCE, BATCH, GROW, GROW, GROW, REFRESH, RESET],
}


def spy(owner: Any, names: list[str], calls: list[str]) -> None:
    """Attributes that write the name down and go on. A bound object takes none, so its class gets them."""

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return method(*args, **kwargs)

        return call

    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, noting(name, getattr(owner, name)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_prepare_resources_calls_in_upstreams_order(variant: str) -> None:
    with upstream(variant):
        server = Server()
        manager = server.manager
        (running,) = manager.add_dummy_requests([7], [5], is_gen=True)
        contexts = [server.request(number, list(range(number, number + 6)), py_draft_tokens=[0]) for number in (10, 20)]
        for request in contexts:
            request.context_chunk_size = request.prompt_len
        batch = server.scheduled_requests()
        if hasattr(batch, RESET):
            batch.reset_context_requests(contexts)
        else:
            batch.context_requests = contexts
        batch.generation_requests = [running]
        calls: list[str] = []
        spy(type(manager.impl), [FENCE, REFRESH, ADD, BATCH, GROW], calls)
        spy(batch, [RESET], calls)
        manager.prepare_resources(batch)
        assert calls == EXPECTED[variant]
        server.close()


FENCED, SENT = "_wait_for_model_engine_input_copy", "_send_kv_async"
LOOP = [
    FENCED,
    "_prepare_and_schedule_batch",
    "_schedule",
    "_terminate_requests",
    "prepare_resources",
    "_forward_step",
    "_update_requests",
    SENT,
    "_pause_requests",
    "_sample_async",
    FENCED,
    "_update_request_states",
    FENCED,
    "_process_previous_batch",
    "_kv_connector_terminate_requests",
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_overlap_loop_launches_a_step_before_it_takes_the_last_ones_tokens(variant: str) -> None:
    with upstream(variant):
        server = Server()
        calls: list[str] = []
        spy(server.executor, sorted(set(LOOP)), calls)
        spy(server.executor.resource_manager, LOOP, calls)
        server.serve([server.request(1, [1, 2, 3], 5)])
        # The loop was waiting in its first call when the spy came; a later round is seen whole.
        later = calls[calls.index(LOOP[-1], calls.index("_process_previous_batch")) + 1 :]
        missing = {FENCED} if variant not in "DF" else set()
        missing |= {SENT} if variant == "A" else set()
        assert later[: later.index(LOOP[-1]) + 1] == [name for name in LOOP if name not in missing]
