"""Traffic on which the stand-in's batches overshoot: the loop dies without the fixes and serves with them."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import pytest

from tests.fixes.applied import applied, standing_in
from tests.standin.admissions import EVAPORATION, SHARED_LEAF, fill_for_evaporation, leave_a_leaf
from tests.standin.serving import Server
from trtllm_kvfix.metrics import counters

# Room for one token less than the batch has, and for a block of the second request.
CHUNKED = {**SHARED_LEAF, "enable_chunked_prefill": True, "max_num_tokens": 21}

Traffic = Callable[[Server], list[Any]]


def overshooting(*variants: str, chunked: bool = False) -> pytest.MarkDecorator:
    """The variant overshoots on this traffic: B2's estimate counts only full blocks, so it promises no leaf."""
    leaf = CHUNKED if chunked else SHARED_LEAF
    evaporating = EVAPORATION | {"enable_chunked_prefill": chunked}
    made = [
        (variant, evaporating, fill_for_evaporation) if variant == "B2" else (variant, leaf, leave_a_leaf)
        for variant in variants
    ]
    return pytest.mark.parametrize(("variant", "sizes", "traffic"), made, ids=variants)


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


def budget(variant: str) -> list[str]:
    """In B2 a prompt that is cut short would be offered for reuse whole."""
    return ["computed-blocks", "token-budget"] if variant == "B2" else ["token-budget"]


def reused_in_b() -> int:
    server = Server({**EVAPORATION, "max_num_tokens": 128})  # room for both prompts, whole
    requests = fill_for_evaporation(server)
    server.serve(requests)
    return sum(request.prepopulated_prompt_len for request in requests)


def test_in_the_better_order_more_is_reused_where_whole_prompts_are_charged() -> None:
    with standing_in("B"):
        assert reused_in_b() == 20
        with applied(["batched-admission"]):
            assert reused_in_b() == 40
        assert reused_in_b() == 20


def admitted_by_each_manager() -> list[list[int]]:
    """The last two requests, in the order in which the draft's manager and the target's admitted them."""
    server = Server({**EVAPORATION, "max_num_tokens": 128, "speculative_config": {}})
    requests = fill_for_evaporation(server)
    managers = server.executor.resource_manager.resource_managers.values()
    noted: dict[int, list[int]] = {id(manager.impl): [] for manager in managers if hasattr(manager, "impl")}
    bound = type(server.manager.impl)
    add = bound.add_sequence

    def noting(impl: Any, request_id: int, *rest: Any) -> Any:
        noted[id(impl)].append(request_id)
        return add(impl, request_id, *rest)

    with mock.patch.object(bound, "add_sequence", noting):  # a bound object takes no attribute
        server.serve(requests)
    return list(noted.values())


def test_a_drafts_manager_admits_in_the_order_of_the_targets() -> None:
    with standing_in("B"):
        assert admitted_by_each_manager() == [[10, 11], [10, 11]]
        with applied(["batched-admission"]):
            assert admitted_by_each_manager() == [[11, 10], [11, 10]]


def test_in_the_better_order_nothing_evaporates() -> None:
    counted = off_on_off("B2", ["batched-admission"], EVAPORATION, fill_for_evaporation)
    assert counted["reuse_lost_tokens"] == 0 and counted["reused_tokens"] > 0


def test_what_evaporates_is_put_off() -> None:
    counted = off_on_off("B2", budget("B2"), EVAPORATION, fill_for_evaporation)
    assert counted["budget_deferrals"] == 1


def test_where_a_prompt_that_is_cut_short_is_offered_whole_the_budget_cuts_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with standing_in("B2"), applied(["token-budget"]):
        assert not served(EVAPORATION, fill_for_evaporation)
    assert "computed-blocks is off" in caplog.text


@overshooting("B2", "C", "D", "F")
def test_without_chunked_prefill_a_request_waits(variant: str, sizes: dict[str, Any], traffic: Traffic) -> None:
    """Upstream's own trim, where there is one, only makes chunks smaller."""
    counted = off_on_off(variant, budget(variant), sizes, traffic)
    assert counted["budget_deferrals"] == 1 and counted["budget_trims"] == 0


@overshooting("B2", "C", chunked=True)
def test_with_chunked_prefill_a_chunk_ends_earlier(variant: str, sizes: dict[str, Any], traffic: Traffic) -> None:
    counted = off_on_off(variant, budget(variant), sizes, traffic)
    assert counted["budget_trims"] == 1 and counted["budget_deferrals"] == 0


@pytest.mark.parametrize("variant", ["D", "F"])
def test_where_upstream_has_trimmed_nothing_is_left_to_do(variant: str) -> None:
    with standing_in(variant), applied(["token-budget"]):
        before = counters.read()
        assert served(CHUNKED, leave_a_leaf)
        after = counters.read()
        assert after["budget_trims"] == before["budget_trims"]
        assert after["budget_deferrals"] == before["budget_deferrals"]


def test_both_together_lose_nothing_and_put_off_nothing() -> None:
    counted = off_on_off("B2", ["batched-admission", *budget("B2")], EVAPORATION, fill_for_evaporation)
    assert counted["budget_deferrals"] == counted["reuse_lost_tokens"] == 0


@overshooting("B2", "C", "D", "F")
def test_a_request_that_was_put_off_has_its_own_blocks_when_it_runs(
    variant: str, sizes: dict[str, Any], traffic: Traffic
) -> None:
    racy = ["staged-offsets-v1", "input-copy-fence"] if variant not in "DF" else []
    with standing_in(variant), applied([*budget(variant), *racy]):
        server = Server(sizes)
        before = counters.read()["budget_deferrals"]
        server.run(traffic(server))
        assert counters.read()["budget_deferrals"] == before + 1
        assert server.witness.corruptions == []
        stats = server.manager.impl.get_kv_cache_stats()
        assert stats.used_num_blocks == 0, "blocks of a request that was put off were never given back"
        server.close()


@overshooting("B2", "C", "D", "F")
def test_a_connector_is_told_of_a_request_once_and_has_it_in_a_report_when_it_runs(
    variant: str, sizes: dict[str, Any], traffic: Traffic
) -> None:
    """A request that is put off keeps its blocks, so what the connector learned about them stays true."""
    module = "tests.fixes.recording_connector"
    connector = {
        "connector_module": module,
        "connector_scheduler_class": "Scheduler",
        "connector_worker_class": "Worker",
    }
    with standing_in(variant), applied(budget(variant)):
        config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConnectorConfig(**connector)
        server = Server({**sizes, "kv_connector_config": config})
        requests = traffic(server)
        server.run(requests)
        steps = [step for step in server.executor.kv_connector_manager.scheduler.steps if any(step)]
        first, second = (request.request_id for request in requests)
        assert steps[-2:] == [([first, second], [first]), ([], [second])]
        assert steps[:-2] == [([alone], [alone]) for alone in range(len(steps) - 2)]
        server.close()
        assert server.executor.contents.corrupt == []
        sys.modules.pop(module)
