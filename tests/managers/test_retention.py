"""The core honours how long requests want their blocks kept, as read where upstream makes the request."""

from copy import deepcopy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.ranks import Between, RankComm, on_ranks
from tests.managers.making import Bench, bench
from trtllm_kvfix import native
from trtllm_kvfix.managers.between_ranks import Clock
from trtllm_kvfix.managers.constructors import noting
from trtllm_kvfix.managers.prompts import NOTED_RETENTION, NotedRetention

MINUTE_MS = 60_000


def config(priority: int, duration: timedelta | None = None, decode: int = 35) -> Any:
    whole = SimpleNamespace(token_start=0, token_end=None, priority=priority, duration_ms=duration)
    return SimpleNamespace(
        token_range_retention_configs=[whole], decode_retention_priority=decode, decode_duration_ms=None
    )


def served(b: Bench, request_id: int, tokens: range, wanted: Any) -> None:
    request = b.request(request_id, tokens)
    request.py_kvfix_retention = NotedRetention.from_config(wanted)
    b.prepare([request])
    b.computed(request)
    b.impl.remove_sequence(request_id, request, False)


def test_the_keyword_is_noted_and_copied_as_upstream_copies_a_request() -> None:
    class Request:
        def __init__(self, **given: Any) -> None:
            self.given = given

    Request.__init__ = noting(Request.__init__)  # type: ignore[method-assign]
    assert getattr(Request(kv_cache_retention_config=None), NOTED_RETENTION, None) is None
    wanted = config(80, timedelta(seconds=1.5), decode=10)
    wanted.token_range_retention_configs.insert(
        0, SimpleNamespace(token_start=40, token_end=50, priority=1, duration_ms=None)
    )
    found = getattr(Request(kv_cache_retention_config=wanted), NOTED_RETENTION)
    assert found == NotedRetention(((0, None, 80, 1500), (40, 50, 1, None)), 10, None)
    assert deepcopy(found) == found


@pytest.mark.parametrize("first_is_kept", [True, False])
def test_what_is_wanted_longer_is_evicted_later(first_is_kept: bool) -> None:
    """The first is used earlier, so without a word it would go first."""
    with bench(blocks=8) as b:
        served(b, 1, range(16), config(80 if first_is_kept else 35))
        served(b, 2, range(100, 116), config(35))
        served(b, 3, range(200, 208), config(35))
        assert (b.cached(range(16)) == 15) == first_is_kept


def test_a_duration_ends_by_the_clock() -> None:
    now = [0.0]
    with bench(blocks=8) as b:
        b.impl._books._clock = Clock(b.impl.core, 1, find=lambda: None, now=lambda: now[0], every=1)
        served(b, 1, range(16), config(80, timedelta(minutes=1)))
        served(b, 2, range(100, 116), config(50))
        now[0] = 61
        served(b, 3, range(200, 208), config(50))
        assert b.cached(range(16)) < 15
        assert b.cached(range(100, 116)) == 15


def test_the_clock_stands_still_until_somebody_asks() -> None:
    with bench() as b:
        asked: list[int] = []
        b.impl._books._clock = Clock(b.impl.core, 1, find=lambda: asked.append(1), every=1)
        served(b, 1, range(8), config(80))
        b.prepare()
        assert asked == []
        served(b, 2, range(8), config(80, timedelta(minutes=1)))
        b.prepare()
        assert asked


class Recording:
    def __init__(self) -> None:
        self.times: list[int] = []

    def advance_time(self, now_ms: int) -> None:
        self.times.append(now_ms)


def test_ranks_whose_clocks_differ_set_their_books_to_the_same_times() -> None:
    """Rank 1 is an hour ahead, and runs twice as fast."""

    def work(rank: int, comm: RankComm) -> list[int]:
        core, iteration = Recording(), [0]
        clock = Clock(
            core,  # type: ignore[arg-type]  # what it calls
            1,
            find=lambda: comm,
            now=lambda: iteration[0] * (1 + rank) + 3600.0 * rank,
            every=4,
        )
        clock.start()
        for number in range(1, 21):
            iteration[0] = number
            clock.step()
        return core.times

    assert on_ranks(Between(3), work) == [[4000, 8000, 12000, 16000]] * 3


def test_a_rank_zero_that_says_nothing_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    core = native.BlockManager(native.BlockManagerConfig(tokens_per_block=4, blocks_primary=4))
    clock = Clock(core, 1, find=lambda: Between(2).of(1), every=1, patience_s=0)
    clock.start()
    clock.step()
    clock.step()
    assert "rank 0 did not send its time" in caplog.text
