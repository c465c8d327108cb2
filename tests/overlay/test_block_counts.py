"""Counts of blocks that cannot be are counted and said once, and upstream gets its statistics as they are."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.applied import standing_in
from tests.standin.serving import Server
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import block_counts
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER


def statistics(free: Any, used: Any, all_blocks: Any = 10) -> Any:
    return SimpleNamespace(free_num_blocks=free, used_num_blocks=used, max_num_blocks=all_blocks)


def counted(calls: Iterator[Any]) -> float:
    before = counters.impossible_block_counts.value
    for _ in calls:
        pass
    return counters.impossible_block_counts.value - before


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (statistics(11, -1), "11 of 10 blocks are free"),
        (statistics(-1, 11), "-1 blocks are free, and 11 are used"),
        (statistics(3, -2), "3 blocks are free, and -2 are used"),
    ],
)
def test_what_cannot_be_is_counted_each_time_and_said_once(
    told: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    look = block_counts.looking_at_counts(lambda _manager: told)
    assert counted(look(None) for _ in range(3)) == 3
    assert look(None) is told
    assert len(caplog.messages) == 1 and why in caplog.messages[0]


@pytest.mark.parametrize("told", [statistics(10, 0), statistics(0, 10), statistics(4, 6), statistics(0, 0, 0)])
def test_what_can_be_is_left_alone(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    look = block_counts.looking_at_counts(lambda _manager: told)
    assert counted(iter([look(None)])) == 0
    assert caplog.messages == []


@pytest.mark.parametrize("told", [None, statistics("many", None)])
def test_statistics_of_another_kind_are_passed_on(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    look = block_counts.looking_at_counts(lambda _manager: told)
    assert [look(None), look(None)] == [told, told]
    assert len(caplog.messages) == 1 and "cannot be read" in caplog.messages[0]


def test_counts_that_are_wrong_are_said_although_others_could_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    told = iter([statistics("many", None), statistics(11, -1)])
    look = block_counts.looking_at_counts(lambda _manager: next(told))
    assert counted(look(None) for _ in range(2)) == 1
    assert ["cannot be read" in caplog.messages[0], "11 of 10 blocks" in caplog.messages[1]] == [True, True]


def test_upstreams_exceptions_pass_through() -> None:
    def fails(_manager: Any) -> Any:
        raise RuntimeError("upstream's")

    with pytest.raises(RuntimeError, match="upstream's"):
        block_counts.looking_at_counts(fails)(None)


@pytest.mark.parametrize("variant", ["A", "B", "B2", "C", "D"])
def test_it_stands_where_upstream_asks_its_manager(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In traffic nothing is counted, and everything once the manager's core has lost count."""
    with standing_in(variant):
        (made,) = block_counts.replacements(None)  # type: ignore[arg-type]
        kind: Any = import_module(RESOURCE_MANAGER).KVCacheManager
        monkeypatch.setattr(kind, "get_kv_cache_stats", made.make(kind.get_kv_cache_stats))
        server = Server({})
        before = counters.impossible_block_counts.value
        server.serve(server.workload(8))
        assert server.manager.get_kv_cache_stats().max_num_blocks > 0
        assert counters.impossible_block_counts.value == before
        real = server.manager.impl.get_kv_cache_stats()
        lost = statistics(real.max_num_blocks + 1, -1, real.max_num_blocks)
        monkeypatch.setattr(type(server.manager.impl), "get_kv_cache_stats", lambda _impl: lost)
        assert server.manager.get_kv_cache_stats() is lost
        assert counters.impossible_block_counts.value == before + 1
        monkeypatch.undo()
        server.close()
