"""The budget around a resource manager: a request put off keeps what it has, and is not added or reported again."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.budget_loop import Connector, Loop
from tests.fixes.doubles import PlainBatch, Request, SplitBatch, context, generation
from trtllm_kvfix.fixes.token_budget.fix import limits_of
from trtllm_kvfix.metrics import counters


def test_a_request_that_is_put_off_keeps_its_sequence_and_is_not_added_again() -> None:
    loop = Loop(budget=30, reuse={2: 8})
    stays, waits = context(1, 20), context(2, 24)
    batch = PlainBatch([stays, waits])
    loop.prepare(batch)
    assert batch.context_requests == [stays]
    assert loop.main.impl.sequences == loop.draft.impl.sequences == loop.slots.held == {1, 2}
    assert loop.drafter.held == {1}, "it would be given a second slot when it comes back"
    assert loop.main.impl.removals == []
    assert (waits.context_current_position, waits.prepopulated_prompt_len) == (8, 8)
    again = PlainBatch([waits])
    loop.prepare(again)
    assert again.context_requests == [waits] and loop.drafter.held == {1, 2}


def test_a_request_that_was_put_off_and_ends_is_released_as_ever_and_may_come_back() -> None:
    """A paused request has the same id in its next life, and no sequence."""
    loop = Loop(budget=30)
    waits = context(2, 24)
    loop.prepare(PlainBatch([context(1, 20), waits]))
    loop.main.free_resources(waits)
    loop.draft.free_resources(waits)
    assert loop.main.impl.removals == [(2, waits, False)] and loop.main.impl.sequences == {1}
    loop.prepare(PlainBatch([waits]))
    assert loop.main.impl.sequences == {1, 2}


def test_a_request_past_its_first_chunk_keeps_its_blocks() -> None:
    loop = Loop(budget=30)
    loop.main.impl.sequences.add(2)
    waits = context(2, 40, context_current_position=16)
    batch = PlainBatch([context(1, 20), waits])
    loop.prepare(batch)
    assert [request.request_id for request in batch.context_requests] == [1]
    assert 2 in loop.main.impl.sequences and waits.context_current_position == 16


def test_chunks_shrink_where_prefill_is_chunked() -> None:
    loop = Loop(budget=30, chunked=True)
    batch = PlainBatch([context(1, 20), context(2, 20)], [generation(3)])
    before = counters.read()
    loop.prepare(batch)
    after = counters.read()
    assert [request.context_chunk_size for request in batch.context_requests] == [20, 8]
    assert after["budget_trims"] - before["budget_trims"] == 1
    assert after["budget_trimmed_tokens"] - before["budget_trimmed_tokens"] == 12


def test_a_connector_is_asked_and_told_once_and_sees_the_batch_as_it_runs() -> None:
    connector = Connector()
    loop = Loop(budget=30, connector=connector)
    waits = context(2, 20)
    loop.prepare(PlainBatch([context(1, 20), waits]))
    assert (connector.asked, connector.told, connector.reported) == ([1, 2], [1, 2], [1])
    loop.prepare(PlainBatch([waits]))
    assert (connector.asked, connector.told, connector.reported) == ([1, 2], [1, 2], [1, 2])


def test_a_connectors_order_of_calls_is_upstreams() -> None:
    calls: list[tuple[str, int]] = []

    class Noting(Connector):
        def ask(self, request: Request) -> None:
            calls.append(("match", request.request_id))
            super().ask(request)

        def update_state_after_alloc(self, req: Request, block_ids: list[int]) -> None:
            calls.append(("alloc", req.request_id))
            super().update_state_after_alloc(req, block_ids)

    for budget in (30, 60):
        calls.clear()
        Loop(budget=budget, connector=Noting()).prepare(PlainBatch([context(1, 20), context(2, 20)]))
        assert calls == [("match", 1), ("alloc", 1), ("match", 2), ("alloc", 2)]


def test_a_request_whose_tokens_are_loaded_in_this_step_stays() -> None:
    """Its load is part of the step. A connector that does not hear of it would never load."""
    connector = Connector()
    connector.matches[3] = 8
    loop = Loop(budget=45, connector=connector)
    batch = PlainBatch([context(1, 20), context(2, 20), context(3, 20)])
    loop.prepare(batch)
    assert [request.request_id for request in batch.context_requests] == connector.reported == [1, 3]


def test_a_request_that_the_connector_is_loading_costs_nothing_and_is_told() -> None:
    connector = Connector()
    loop = Loop(budget=30, connector=connector)
    connector.new_async_requests.loading[2] = object()
    loop.prepare(PlainBatch([context(1, 20), context(2, 400)]))
    assert connector.told == connector.reported == [1, 2]


def test_a_request_whose_cache_was_loaded_keeps_it() -> None:
    """Its sequence came with the load and would not be added again."""
    connector = Connector()
    loop = Loop(budget=30, connector=connector)
    connector.loaded.add(2)
    loop.main.impl.sequences.add(2)
    batch = PlainBatch([context(1, 20), context(2, 20)])
    loop.prepare(batch)
    assert [request.request_id for request in batch.context_requests] == connector.reported == [1]
    assert 2 in loop.main.impl.sequences


def test_requests_whose_cache_arrives_bypass_the_budget() -> None:
    """They reach the manager directly, and compute nothing."""
    connector = Connector()
    loop = Loop(budget=30, connector=connector)
    loop.prepare(PlainBatch([context(1, 20)]))
    arriving = context(2, 400, is_disagg_generation_init_state=True)
    loop.main.prepare_resources(PlainBatch([arriving]))
    assert connector.told == [1, 2] and arriving.context_chunk_size == 400


def test_before_the_loop_has_scheduled_nothing_is_touched() -> None:
    loop = Loop(budget=5)
    batch = PlainBatch([context(1, 20), context(2, 20)])
    loop._fitting(loop.resource_manager, batch)
    assert len(batch.context_requests) == 2


def test_ranks_of_a_pipeline_run_the_batch_that_one_of_them_scheduled(caplog: pytest.LogCaptureFixture) -> None:
    """Since 1.2 the others never schedule. A rank that cut the batch would compute another one than its neighbours."""
    first, second = Loop(budget=30), Loop(budget=30)
    first.dist.pp_size = second.dist.pp_size = 2
    batches = [PlainBatch([context(1, 20), context(2, 24)]) for _ in range(2)]
    with caplog.at_level(logging.WARNING, logger="trtllm_kvfix"):
        first.prepare(batches[0])
        second._fitting(second.resource_manager, batches[1])
        first.prepare(PlainBatch([context(3, 40)]))
    assert [len(batch.context_requests) for batch in batches] == [2, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "token-budget leaves the batches of this engine alone: it has 2 pipeline stages"
    ]


def test_where_a_prompt_that_is_cut_short_would_be_offered_whole_nothing_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop(budget=30, safe=False)
    batch = PlainBatch([context(1, 20), context(2, 24)])
    with caplog.at_level(logging.WARNING, logger="trtllm_kvfix"):
        loop.prepare(batch)
    assert len(batch.context_requests) == 2 and "computed-blocks is off" in caplog.text


def test_a_cache_of_v2_is_left_alone() -> None:
    """Its blocks are claimed before the batch is charged."""
    managers = {"KV_CACHE_MANAGER": SimpleNamespace(impl=object(), _kv_connector_should_add_sequence=lambda _: True)}
    executor = SimpleNamespace(resource_manager=SimpleNamespace(resource_managers=managers))
    assert limits_of(executor, lambda _: True) is None


@pytest.mark.parametrize(("owner", "left"), [("model_engine", 1), ("executor", 1), ("nobody", 2)])
def test_the_limit_is_asked_of_the_engine_then_of_the_executor(
    monkeypatch: pytest.MonkeyPatch, owner: str, left: int
) -> None:
    """An engine without one, such as another backend's, must not end the loop."""
    loop = Loop(budget=30)
    if owner != "model_engine":
        del loop.model_engine.max_num_tokens
    if owner == "executor":
        monkeypatch.setattr(loop, "max_num_tokens", 30, raising=False)
    batch = PlainBatch([context(1, 20), context(2, 24)])
    loop.prepare(batch)
    assert len(batch.context_requests) == left


@pytest.mark.parametrize(("overlaps", "left"), [(True, 1), (False, 2)])
def test_drafts_that_are_on_the_device_count_where_the_loop_overlaps(overlaps: bool, left: int) -> None:
    loop = Loop(budget=43)
    loop.model_engine.enable_spec_decode, loop.model_engine.runtime_draft_len = True, 3
    loop.disable_overlap_scheduler = not overlaps
    batch = PlainBatch([context(1, 20), context(2, 20)], [generation(3, batch_idx=0)])
    loop.prepare(batch)
    assert len(batch.context_requests) == left


def test_generations_alone_are_not_looked_at() -> None:
    """They cannot be put off, and every iteration would pay for the look."""
    loop = Loop(budget=5)

    class Unread(list[Request]):
        def __iter__(self) -> Iterator[Request]:
            raise AssertionError("the generations were counted")

    loop.prepare(PlainBatch([], Unread()))
    assert loop.fuse.faults == 0


def test_what_nothing_can_be_done_about_is_said(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(budget=5)
    before = counters.read()
    with caplog.at_level(logging.INFO, logger="trtllm_kvfix"):
        loop.prepare(PlainBatch([context(1, 8)], [generation(2, drafts=9)]))
    assert "nothing more can be put off" in caplog.text
    assert counters.read()["budget_overruns"] - before["budget_overruns"] == 1


def test_every_deferral_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(budget=30)
    before = counters.read()
    with caplog.at_level(logging.INFO, logger="trtllm_kvfix"):
        loop.prepare(PlainBatch([context(1, 20), context(2, 20)]))
    assert "put off requests [2]" in caplog.text and "max_num_tokens 30" in caplog.text
    assert counters.read()["budget_deferrals"] - before["budget_deferrals"] == 1


FIXES = "trtllm_kvfix.fixes"
PLACES = [
    f"{FIXES}.token_budget.fix.enters",
    f"{FIXES}.token_budget.fix.batch_tokens",
    f"{FIXES}.token_budget.fix.plan",
    f"{FIXES}.token_budget.fix.replace_contexts",
]


@pytest.mark.parametrize("times", [1, 10**9], ids=["once", "always"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_fault_of_ours_leaves_upstreams_batch(
    monkeypatch: pytest.MonkeyPatch, place: str, times: int, split: bool, chunked: bool
) -> None:
    module, name = place.rsplit(".", 1)
    left, real = [times], vars(__import__(module, fromlist=[name]))[name]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("injected")
        return real(*args, **kwargs)

    loop = Loop(budget=30, chunked=chunked)
    monkeypatch.setattr(place, faulty)
    for step in range(4):
        requests = [context(10 * step + number, 20) for number in (1, 2)]
        batch: Any = SplitBatch(requests, []) if split else PlainBatch(list(requests))
        loop.prepare(batch)
        if step < times:
            assert batch.context_requests == requests
            assert [request.context_chunk_size for request in requests] == [20, 20]
        else:
            assert sum(request.context_chunk_size for request in batch.context_requests) == (28 if chunked else 20)
    assert loop.fuse.faults == min(times, 3) and loop.fuse.blown == (times > 1)


def test_a_slot_that_cannot_be_given_back_costs_no_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(budget=30)

    def free_resources(_: Any) -> None:
        raise OSError("injected")

    monkeypatch.setattr(loop.drafter, "free_resources", free_resources, raising=False)
    waits = context(2, 24)
    loop.prepare(PlainBatch([context(1, 20), waits]))
    assert loop.fuse.faults == 1
    assert not loop.main._kv_connector_should_add_sequence(waits)


def test_what_upstream_raises_passes_and_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(budget=30)

    def prepare_resources(_: Any) -> None:
        raise MemoryError("no free blocks")

    monkeypatch.setattr(loop.main, "prepare_resources", prepare_resources, raising=False)
    with pytest.raises(MemoryError):
        loop.prepare(PlainBatch([context(1, 20), context(2, 24)]))
    assert loop.fuse.faults == 0
