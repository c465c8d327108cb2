"""Iterations in which a rank has nothing to run: upstream reports all the same, once or twice."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from .conftest import MakeBench, serve_alone
from .upstream_double import ConnectorManager, Request


class TellsMore(ConnectorManager):
    """Reports before a step and after it, and once more without a report, as early upstream does in
    `handle_metadata`."""

    def start_step(self, scheduled: Sequence[tuple[Request, list[int], int]], stream: int | None) -> None:
        self.tell_nothing()
        super().start_step(scheduled, stream)
        self.tell_nothing()

    def tell_nothing(self) -> None:
        self.worker.bind_connector_meta(self.on_leader(lambda: self.scheduler.build_connector_meta(None)))


class SkipsIdleSteps(ConnectorManager):
    """An upstream that skips a step whose whole batch was taken out: nobody hears of the load."""

    def start_step(self, scheduled: Sequence[tuple[Request, list[int], int]], stream: int | None) -> None:
        if scheduled:
            super().start_step(scheduled, stream)


def conversation(number: int) -> Request:
    return Request(number, [7, *range(1, 24)], max_new_tokens=3)


@pytest.mark.parametrize("manager", [TellsMore, SkipsIdleSteps])
def test_a_request_is_served_from_the_host_tier_however_often_upstream_tells(
    manager: type[ConnectorManager], make_bench: MakeBench
) -> None:
    bench = make_bench(manager_class=manager)
    assert type(bench.manager) is manager
    assert [serve_alone(bench, conversation(number)) for number in (1, 2)] == [0, 20]
    assert bench.executor.corrupt == []
    assert len(bench.scheduler.side._sources) == 0


def test_a_rank_without_requests_meets_nobody(make_bench: MakeBench) -> None:
    """No transfer and no request that saves or loads: nothing that ranks would have to agree on."""
    bench, meetings = make_bench(), list[Any]()
    bench.worker.side._ranks = SimpleNamespace(rank=0, size=2, gather=meetings.append)
    for _ in range(3):
        bench.executor.step()
    assert meetings == []
