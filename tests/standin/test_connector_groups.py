"""Late V2 managers take connectors, and report layer groups to them (surface 6.1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.standin import connector_double
from tests.standin.fixture import upstream
from tests.standin.serving import Server

V2 = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}


class Grouped:
    """The further parts of a scheduler that groups need, and the calls that it got."""

    def update_state_after_alloc_by_layer_group(self: Any, request: Any, groups: list[list[int]]) -> None:
        self.told = [*getattr(self, "told", []), (request.request_id, groups)]

    def request_finished_by_layer_group(self: Any, request: Any, groups: list[list[int]]) -> bool:
        self.ended = [*getattr(self, "ended", []), (request.request_id, groups)]
        return False

    def request_reset(self: Any, request: Any) -> None:
        self.resets = [*getattr(self, "resets", []), request.request_id]


@contextmanager
def grouped(monkeypatch: pytest.MonkeyPatch, **on_worker: object) -> Iterator[tuple[Server, Any, Any]]:
    with upstream("F"):
        layouts: list[Any] = []
        taking = {"register_kv_cache_layout": lambda _, layout: layouts.append(layout), **on_worker}
        worker = type("Worker", (connector_double.Worker,), taking)
        scheduler = type("Scheduler", (Grouped, connector_double.Scheduler), {})
        monkeypatch.setattr(connector_double, "Worker", worker, raising=False)
        monkeypatch.setattr(connector_double, "Scheduler", scheduler, raising=False)
        server = Server({**V2, "kv_connector_config": connector_double.CONFIG})
        assert type(server.manager).__name__ == "KVCacheManagerV2"
        assert [len(layout.groups) for layout in layouts] == [2]
        manager = server.executor.kv_connector_manager
        yield server, manager, manager.scheduler
        server.close()


def test_a_v2_manager_passes_three_arguments_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in between that takes only two of them ends the server."""
    with grouped(monkeypatch) as (server, manager, scheduler):
        calls: list[tuple[Any, ...]] = []
        real = type(manager).update_state_after_alloc

        def noted(self: Any, *args: Any) -> None:
            calls.append(args)
            real(self, *args)

        monkeypatch.setattr(type(manager), "update_state_after_alloc", noted)
        request = server.request(1, list(range(9)))
        server.run([request])
        ((told, flat, groups),) = calls
        assert told is request and flat == [] and len(groups) == 2 and len(groups[0]) == 3
        assert scheduler.told == [(1, groups)] and scheduler.asked == [request]


def test_the_end_of_a_request_forgets_what_was_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with grouped(monkeypatch) as (server, _, scheduler):
        for first in (10, 50):
            server.executor.responses.clear()
            server.run([server.request(1, [first, 2, 3, 4, 5])])
        new = [data for output in scheduler.outputs for data in output.new_requests]
        assert [data.new_tokens[0] for data in new] == [10, 50]
        assert [data.new_block_ids for data in new] == [[], []]
        assert all(len(data.new_block_ids_by_layer_group) == 2 for data in new)
        assert scheduler.resets == [1, 1]


def test_an_end_is_told_once_more_with_empty_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that had the request once more ends when its pages are gone; a V1 manager raises there."""
    with grouped(monkeypatch) as (server, _, scheduler):
        server.run([server.request(1, [1, 2, 3]), server.request(2, [4, 5, 6], 9)])
        (request_id, pages), again = [end for end in scheduler.ended if end[0] == 1]
        assert request_id == 1 and all(pages) and again == (1, [[], []])


def test_what_a_v2_connector_loads_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with grouped(monkeypatch) as (server, _, scheduler):
        scheduler.matched = 8
        request = server.request(1, list(range(17)))
        server.run([request])
        assert request.prepopulated_prompt_len == 8
        (data,) = [data for output in scheduler.outputs for data in output.new_requests]
        assert (data.computed_position, data.num_scheduled_tokens) == (0, 9)


def test_a_worker_of_capacity_alone_is_told_of_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with grouped(monkeypatch, capacity_only=True) as (server, _, scheduler):
        server.run(server.workload(3))
        assert (scheduler.outputs, hasattr(scheduler, "told"), hasattr(scheduler, "ended")) == ([], False, False)


def test_a_scheduler_with_flat_callbacks_is_refused_at_the_start() -> None:
    with upstream("F"), pytest.raises(RuntimeError, match="2 layer groups"):
        Server({**V2, "kv_connector_config": connector_double.CONFIG})
