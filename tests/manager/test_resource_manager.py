"""The budget around a resource manager: what is put off gives its blocks back, and the connector never heard of it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from tests.manager.doubles import TOKENS_PER_BLOCK, PlainBatch, Request, context, generation
from trtllm_kvfix.manager.resource_manager import BudgetKeeper
from trtllm_kvfix.metrics import counters


class Kind(Enum):
    SEQ_SLOT_MANAGER = "slots"
    PEFT_CACHE_MANAGER = "adapters"
    DRAFT_KV_CACHE_MANAGER = "draft"
    KV_CACHE_MANAGER = "main"


@dataclass
class Bound:
    sequences: set[int] = field(default_factory=set)
    removals: list[tuple[int, Any, bool]] = field(default_factory=list)

    def remove_sequence(self, request_id: int, request: Any, pin: bool) -> None:
        self.sequences.remove(request_id)
        self.removals.append((request_id, request, pin))


class KvManager:
    """Reuses what it is told, and reports from inside as upstream's does until the report became a step of its own."""

    tokens_per_block = TOKENS_PER_BLOCK

    def __init__(self, connector: Any = None, reuse: dict[int, int] | None = None) -> None:
        self.impl = Bound()
        self.connector = self.kv_connector_manager = connector
        self.reuse = reuse or {}

    def prepare_resources(self, batch: Any) -> None:
        for request in batch.context_requests:
            if request.is_first_context_chunk and self._should_add(request):
                self.impl.sequences.add(request.request_id)
                reused = self.reuse.get(request.request_id, 0)
                request.context_current_position = request.prepopulated_prompt_len = reused
                request.context_chunk_size = min(request.context_chunk_size, request.context_remaining_length)
                if self.connector is not None:
                    self.connector.update_state_after_alloc(request, [request.request_id])
        if self.connector is not None:
            self.connector.build_scheduler_output(batch, self)

    def _should_add(self, request: Request) -> bool:
        return self.connector is None or self.connector.should_add_sequence(request)

    def free_resources(self, request: Request, pin_on_release: bool = False) -> None:
        self.impl.remove_sequence(request.request_id, request, pin_on_release)


class HybridManager(KvManager):
    """Has a state besides, as managers of state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[int] = set()

    def prepare_resources(self, batch: Any) -> None:
        self.states |= {r.request_id for r in batch.context_requests if r.is_first_context_chunk}
        super().prepare_resources(batch)

    def free_resources(self, request: Request, pin_on_release: bool = False) -> None:
        self.states.remove(request.request_id)
        KvManager.free_resources(self, request, pin_on_release)


class Counting:
    """A manager that holds a thing per request."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def prepare_resources(self, batch: Any) -> None:
        self.held |= {r.request_id for r in batch.context_requests if r.is_first_context_chunk}

    def free_resources(self, request: Request) -> None:
        self.held.remove(request.request_id)


class ResourceManager:
    def __init__(self, managers: dict[Any, Any]) -> None:
        self.resource_managers = managers

    def prepare_resources(self, scheduled_batch: Any) -> None:
        for manager in self.resource_managers.values():
            manager.prepare_resources(scheduled_batch)


class Connector:
    def __init__(self) -> None:
        self.told: list[int] = []
        self.reported: list[int] = []
        self.new_async_requests = SimpleNamespace(loading={})
        self.loaded: set[int] = set()

    def should_add_sequence(self, request: Request) -> bool:
        return request.request_id not in self.loaded

    def update_state_after_alloc(self, req: Request, block_ids: list[int]) -> None:
        assert block_ids == [req.request_id]
        self.told.append(req.request_id)

    def build_scheduler_output(self, batch: Any, manager: Any) -> None:
        assert manager.impl.sequences >= {request.request_id for request in batch.context_requests}
        self.reported += [request.request_id for request in batch.context_requests]


class Loop:
    """An executor with the fix in place, of doubles."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        budget: int,
        chunked: bool = False,
        connector: Any = None,
        reuse: dict[int, int] | None = None,
    ) -> None:
        keeper = BudgetKeeper()
        monkeypatch.setattr(KvManager, "free_resources", keeper.releasing(KvManager.free_resources))
        if connector is not None:
            told = type(connector).update_state_after_alloc
            report = type(connector).build_scheduler_output
            guarded = {
                "update_state_after_alloc": keeper.holding_back(told),
                "build_scheduler_output": keeper.reporting(told, report),
            }
            connector.__class__ = type("Patched", (type(connector),), guarded)
        self.main = KvManager(connector, reuse)
        self.draft, self.slots, self.adapters = HybridManager(), Counting(), Counting()
        self.in_flight: set[int] = set()
        self.resource_manager = ResourceManager(
            {
                Kind.SEQ_SLOT_MANAGER: self.slots,
                Kind.PEFT_CACHE_MANAGER: self.adapters,
                Kind.DRAFT_KV_CACHE_MANAGER: self.draft,
                Kind.KV_CACHE_MANAGER: self.main,
            }
        )
        features = SimpleNamespace(chunked_prefill=chunked)
        self.model_engine = SimpleNamespace(max_num_tokens=budget, attn_runtime_features=features)
        self.inflight_req_ids = SimpleNamespace(erase=self.in_flight.discard)
        self._schedule: Callable[..., Any] = keeper.learning(lambda _executor: None)
        self._fitting = keeper.fitting(ResourceManager.prepare_resources)

    def prepare(self, batch: Any) -> None:
        self.in_flight |= {request.request_id for request in batch.context_requests}
        self._schedule(self)
        self._fitting(self.resource_manager, batch)


def test_a_request_that_is_put_off_holds_nothing_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, budget=30, reuse={2: 8})
    stays, waits = context(1, 20), context(2, 24)
    batch = PlainBatch([stays, waits])
    loop.prepare(batch)
    assert batch.context_requests == [stays]
    assert loop.main.impl.sequences == loop.draft.impl.sequences == loop.slots.held == loop.in_flight == {1}
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
    assert loop.in_flight == {1}


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
