"""The budget around a resource manager: what is put off gives its blocks back, and the connector never heard of it."""

import logging
from collections.abc import Iterator

import pytest

from tests.fixes.budget_loop import Connector, Loop
from tests.fixes.doubles import PlainBatch, Request, context, generation
from trtllm_kvfix.metrics import counters


def test_a_request_that_is_put_off_holds_nothing_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=30, reuse={2: 8})
    stays, waits = context(1, 20), context(2, 24)
    batch = PlainBatch([stays, waits])
    loop.prepare(batch)
    assert batch.context_requests == [stays]
    assert loop.main.impl.sequences == loop.draft.impl.sequences == loop.slots.held == {1}
    assert loop.draft.states == {1}
    # Without the request, or blocks that hold nothing yet would be stored for reuse.
    assert loop.main.impl.removals == [(2, None, False)]
    assert (waits.context_current_position, waits.prepopulated_prompt_len, waits.pauses) == (0, 0, 1)
    again = PlainBatch([waits])
    loop.prepare(again)
    assert again.context_requests == [waits] and loop.main.impl.sequences == {1, 2}


def test_a_request_past_its_first_chunk_keeps_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=30)
    loop.main.impl.sequences.add(2)
    waits = context(2, 40, context_current_position=16)
    batch = PlainBatch([context(1, 20), waits])
    loop.prepare(batch)
    assert [request.request_id for request in batch.context_requests] == [1]
    assert 2 in loop.main.impl.sequences and waits.pauses == 0 and waits.context_current_position == 16


def test_chunks_shrink_where_prefill_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=30, chunked=True)
    batch = PlainBatch([context(1, 20), context(2, 20)], [generation(3)])
    before = counters.read()
    loop.prepare(batch)
    after = counters.read()
    assert [request.context_chunk_size for request in batch.context_requests] == [20, 8]
    assert after["budget_trims"] - before["budget_trims"] == 1
    assert after["budget_trimmed_tokens"] - before["budget_trimmed_tokens"] == 12


def test_the_connector_hears_of_those_that_stay_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Connector()
    loop = Loop(monkeypatch, budget=30, connector=connector)
    loop.prepare(PlainBatch([context(1, 20), context(2, 20)]))
    assert connector.told == connector.reported == [1]
    assert loop.main.impl.sequences == {1}


def test_a_request_that_the_connector_is_loading_costs_nothing_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Connector()
    loop = Loop(monkeypatch, budget=30, connector=connector)
    connector.new_async_requests.loading[2] = object()
    loop.prepare(PlainBatch([context(1, 20), context(2, 400)]))
    assert connector.told == connector.reported == [1, 2]


def test_requests_whose_cache_arrives_bypass_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach the manager directly, and compute nothing."""
    connector = Connector()
    loop = Loop(monkeypatch, budget=30, connector=connector)
    loop.prepare(PlainBatch([context(1, 20)]))
    arriving = context(2, 400, is_disagg_generation_init_state=True)
    loop.main.prepare_resources(PlainBatch([arriving]))
    assert connector.told == [1, 2] and arriving.context_chunk_size == 400


def test_before_the_loop_has_scheduled_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=5)
    batch = PlainBatch([context(1, 20), context(2, 20)])
    loop._fitting(loop.resource_manager, batch)
    assert len(batch.context_requests) == 2


def test_ranks_of_a_pipeline_run_the_batch_that_one_of_them_scheduled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Since 1.2 the others never schedule. A rank that cut the batch would compute another one than its neighbours."""
    first, second = Loop(monkeypatch, budget=30), Loop(monkeypatch, budget=30)
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


@pytest.mark.parametrize(("owner", "left"), [("model_engine", 1), ("executor", 1), ("nobody", 2)])
def test_the_limit_is_asked_of_the_engine_then_of_the_executor(
    monkeypatch: pytest.MonkeyPatch, owner: str, left: int
) -> None:
    """An engine without one, such as another backend's, must not end the loop."""
    loop = Loop(monkeypatch, budget=30)
    if owner != "model_engine":
        del loop.model_engine.max_num_tokens
    if owner == "executor":
        monkeypatch.setattr(loop, "max_num_tokens", 30, raising=False)
    batch = PlainBatch([context(1, 20), context(2, 24)])
    loop.prepare(batch)
    assert len(batch.context_requests) == left


def test_generations_alone_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot be put off, and every iteration would pay for the look."""
    loop = Loop(monkeypatch, budget=5)

    class Unread(list[Request]):
        def __iter__(self) -> Iterator[Request]:
            raise AssertionError("the generations were counted")

    loop.prepare(PlainBatch([], Unread()))


def test_what_nothing_can_be_done_about_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(monkeypatch, budget=5)
    before = counters.read()
    with caplog.at_level(logging.INFO, logger="trtllm_kvfix"):
        loop.prepare(PlainBatch([context(1, 8)], [generation(2, drafts=9)]))
    assert "nothing more can be put off" in caplog.text
    assert counters.read()["budget_overruns"] - before["budget_overruns"] == 1


def test_every_deferral_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(monkeypatch, budget=30)
    before = counters.read()
    with caplog.at_level(logging.INFO, logger="trtllm_kvfix"):
        loop.prepare(PlainBatch([context(1, 20), context(2, 20)]))
    assert "put off requests [2]" in caplog.text and "max_num_tokens 30" in caplog.text
    assert counters.read()["budget_deferrals"] - before["budget_deferrals"] == 1


def test_a_request_that_ends_is_released_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=30)
    ended = context(1, 20)
    loop.prepare(PlainBatch([ended]))
    loop.main.free_resources(ended, True)
    assert loop.main.impl.removals == [(1, ended, True)]


def test_a_request_whose_cache_was_loaded_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sequence came with the load and would not be added again."""
    connector = Connector()
    loop = Loop(monkeypatch, budget=30, connector=connector)
    connector.loaded.add(2)
    loop.main.impl.sequences.add(2)
    loaded = context(2, 20)
    batch = PlainBatch([context(1, 20), loaded])
    loop.prepare(batch)
    assert [request.request_id for request in batch.context_requests] == connector.reported == [1]
    assert 2 in loop.main.impl.sequences and loaded.pauses == 0
