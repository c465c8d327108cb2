"""Traffic on which the stand-in's batches overshoot: the loop dies without the fixes and serves with them."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.fixes.applied import applied, standing_in
from tests.standin.admissions import EVAPORATION, SHARED_LEAF, fill_for_evaporation, leave_a_leaf
from tests.standin.fixture import VARIANTS
from tests.standin.serving import Server
from trtllm_kvfix.metrics import counters

# Room for one token less than the batch has, and for a block of the second request.
CHUNKED = {**SHARED_LEAF, "enable_chunked_prefill": True, "max_num_tokens": 21}

Traffic = Callable[[Server], list[Any]]


def served(llm_args: dict[str, Any], traffic: Traffic) -> bool:
    """Whether the last requests are answered, all of them with every token."""
    server = Server(llm_args)
    requests = traffic(server)
    responses = server.run(requests)
    if any(response.error_msg for response in responses):
        server.executor.worker_thread.join()
        with pytest.raises(AssertionError, match="Sampling failed"):
            server.close()
        return False
    server.close()
    assert [len(response.tokens) for response in responses] == [request.max_new_tokens for request in requests]
    return True


def off_on_off(variant: str, ids: list[str], llm_args: dict[str, Any], traffic: Traffic) -> dict[str, float]:
    """Returns what was counted while the fixes were on."""
    with standing_in(variant):
        assert not served(llm_args, traffic)
        before = counters.read()
        with applied(ids):
            assert served(llm_args, traffic)
        after = counters.read()
        assert not served(llm_args, traffic)
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("variant", ["B2"])
def test_in_the_better_order_nothing_evaporates(variant: str) -> None:
    counted = off_on_off(variant, ["batched-admission"], EVAPORATION, fill_for_evaporation)
    assert counted["reuse_lost_tokens"] == 0 and counted["reused_tokens"] > 0


@pytest.mark.parametrize("variant", ["B2"])
def test_what_evaporates_is_put_off(variant: str) -> None:
    counted = off_on_off(variant, ["token-budget"], EVAPORATION, fill_for_evaporation)
    assert counted["budget_deferrals"] == 1


@pytest.mark.parametrize("variant", ["C", "D", "F"])
def test_without_chunked_prefill_a_request_waits(variant: str) -> None:
    """Upstream's own trim, where there is one, only makes chunks smaller."""
    counted = off_on_off(variant, ["token-budget"], SHARED_LEAF, leave_a_leaf)
    assert counted["budget_deferrals"] == 1 and counted["budget_trims"] == 0


@pytest.mark.parametrize("variant", ["C"])
def test_with_chunked_prefill_a_chunk_ends_earlier(variant: str) -> None:
    counted = off_on_off(variant, ["token-budget"], CHUNKED, leave_a_leaf)
    assert counted["budget_trims"] == 1 and counted["budget_deferrals"] == 0


@pytest.mark.parametrize("variant", ["D", "F"])
def test_where_upstream_has_trimmed_nothing_is_left_to_do(variant: str) -> None:
    with standing_in(variant), applied(["token-budget"]):
        before = counters.read()
        assert served(CHUNKED, leave_a_leaf)
        after = counters.read()
        assert after["budget_trims"] == before["budget_trims"]
        assert after["budget_deferrals"] == before["budget_deferrals"]


@pytest.mark.parametrize("variant", ["B2"])
def test_both_together_lose_nothing_and_put_off_nothing(variant: str) -> None:
    counted = off_on_off(variant, ["batched-admission", "token-budget"], EVAPORATION, fill_for_evaporation)
    assert counted["budget_deferrals"] == counted["reuse_lost_tokens"] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_request_that_was_put_off_has_its_own_blocks_when_it_runs(variant: str) -> None:
    racy = ["staged-offsets-v1", "input-copy-fence"] if variant not in "DF" else []
    with standing_in(variant), applied(["token-budget", *racy]):
        server = Server(SHARED_LEAF)
        server.run(leave_a_leaf(server))
        assert server.witness.corruptions == []
        stats = server.manager.impl.get_kv_cache_stats()
        assert stats.used_num_blocks == 0, "blocks of a request that was put off were never given back"
        server.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_connector_hears_of_a_request_when_it_runs_and_not_before(variant: str) -> None:
    """Blocks that are given back again must not be told: a load into them would hit their next owner."""
    module = "tests.fixes.recording_connector"
    connector = {
        "connector_module": module,
        "connector_scheduler_class": "Scheduler",
        "connector_worker_class": "Worker",
    }
    with standing_in(variant), applied(["token-budget"]):
        config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConnectorConfig(**connector)
        server = Server({**SHARED_LEAF, "kv_connector_config": config})
        server.run(leave_a_leaf(server))
        steps = server.executor.kv_connector_manager.scheduler.steps
        assert all(told == entered for told, entered in steps), steps
        assert [told for told, _ in steps if told] == [[0], [1], [2]]
        server.close()
        sys.modules.pop(module)
