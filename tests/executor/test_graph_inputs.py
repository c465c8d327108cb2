"""With no overlay, CUDA graphs read another step's tables of LoRA, past upstream's own fence (hazard H9)."""

from typing import Any

import pytest

from tests.standin.fixture import upstream
from tests.standin.serving import Server

HANDS_TABLES_TO_GRAPHS = ["D", "F"]
REQUESTS, ADAPTERS = 24, 12
LORA = {"lora_config": {"max_loras": 8}}


def for_graphs(server: Server, requests: list[Any]) -> list[Any]:
    """Adapters outnumber slots, so that slots change hands. Prompts are computed elsewhere, so that a request joins a
    batch without a step for its context, which has no graph.
    """
    return [
        server.request(
            each.request_id,
            each.input_tokens,
            each.max_new_tokens,
            lora_task_id=each.request_id % ADAPTERS,
            state=server.requests.LlmRequestState.DISAGG_GENERATION_INIT,
        )
        for each in requests
    ]


def serve(server: Server) -> int:
    """Returns how many steps had their graph held."""
    requests = for_graphs(server, server.workload(REQUESTS))
    with server.stall(replay=True) as stall:
        server.serve(requests)
    return stall.held


@pytest.mark.parametrize("variant", HANDS_TABLES_TO_GRAPHS)
@pytest.mark.parametrize("what", ["lora slots", "lora weights"])
def test_overlap_corrupts_what_graphs_read(variant: str, what: str) -> None:
    with upstream(variant):
        server = Server(LORA)
        assert serve(server) > 0
        assert server.witness.corrupt(what)


@pytest.mark.parametrize("variant", HANDS_TABLES_TO_GRAPHS)
def test_without_overlap_the_wait_for_the_sample_is_behind_the_graph(variant: str) -> None:
    with upstream(variant):
        server = Server({**LORA, "disable_overlap_scheduler": True})
        assert serve(server) > 0
        assert server.witness.corruptions == []


@pytest.mark.parametrize("variant", HANDS_TABLES_TO_GRAPHS)
def test_without_adapters_there_is_no_graph_to_hold(variant: str) -> None:
    with upstream(variant):
        server = Server(LORA)
        with server.stall(replay=True) as stall:
            server.serve(server.workload(REQUESTS))
        assert stall.held == 0
        assert server.witness.corruptions == []
