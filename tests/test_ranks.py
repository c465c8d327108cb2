"""Ranks that meet: each gets what all gave, or learns who did not come."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixes.ranks import Between, RankComm, on_ranks
from trtllm_kvfix.ranks import MpiRanks, Patience, RankSilent, Tag, agreed

LIMIT_S = 0.05
LONG_S = 60.0


class Sending:
    def __init__(self, has_arrived: bool) -> None:
        self._has_arrived = has_arrived

    def test(self) -> tuple[bool, None]:
        return self._has_arrived, None


class Stuck(RankComm):
    """What it sends to one rank is never taken whole."""

    def __init__(self, between: Between, rank: int, deaf: int) -> None:
        super().__init__(between, rank)
        self._deaf = deaf

    def isend(self, obj: Any, dest: int, tag: int) -> Any:
        super().isend(obj, dest, tag)
        return Sending(dest != self._deaf)


class Looking(RankComm):
    """Calls `look` whenever its rank looks for a message."""

    def __init__(self, between: Between, rank: int, look: Callable[[], None]) -> None:
        super().__init__(between, rank)
        self._look = look

    def Iprobe(self, source: int, tag: int) -> bool:  # noqa: N802  MPI's
        self._look()
        return super().Iprobe(source, tag)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_rank_gets_what_all_gave_in_their_order(size: int) -> None:
    def met(rank: int, comm: RankComm) -> list[list[str]]:
        ranks = MpiRanks(comm, LONG_S)
        return [ranks.gather(f"{rank} in {meeting}") for meeting in range(20)]

    wanted = [[f"{rank} in {meeting}" for rank in range(size)] for meeting in range(20)]
    assert on_ranks(Between(size), met) == [wanted] * size


@pytest.mark.parametrize(("size", "dead", "said"), [(2, {1}, "rank 1 of 2"), (5, {1, 4}, "ranks 1, 4 of 5")])
def test_ranks_that_do_not_come_are_named_with_the_limit_and_its_setting(size: int, dead: set[int], said: str) -> None:
    def met(rank: int, comm: RankComm) -> str:
        if rank in dead:
            return "dead"
        with pytest.raises(RankSilent) as raised:
            agreed(MpiRanks(comm, LIMIT_S), lambda: rank)
        return str(raised.value)

    told = on_ranks(Between(size), met)
    alive = [text for rank, text in enumerate(told) if rank not in dead]
    assert all(
        f"{said} did not answer within 0.05 s (kvfix.agreement_timeout_s); usual causes" in text for text in alive
    )


def test_a_rank_that_is_late_is_waited_for() -> None:
    """Rank 1 begins once rank 0 has looked for it in vain."""
    between = Between(2)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 10:
            between.of(1).isend("late", 0, Tag.MEETING)

    assert MpiRanks(Looking(between, 0, look), LONG_S).gather("early") == ["early", "late"]


def test_a_rank_that_does_not_take_what_it_is_given_is_named() -> None:
    """It has given its own value, and stands still in the middle of taking another's."""
    between = Between(3)

    def met(rank: int, comm: RankComm) -> Any:
        ranks = MpiRanks(Stuck(between, 0, deaf=2) if rank == 0 else comm, LIMIT_S)
        try:
            return ranks.gather(rank)
        except RankSilent as error:
            return str(error)

    told = on_ranks(between, met)
    assert told[0].startswith("rank 2 of 3 did not answer within 0.05 s")
    assert told[1:] == [[0, 1, 2]] * 2


def test_who_has_given_up_takes_nothing_late_for_the_next_meeting() -> None:
    between = Between(2)
    ranks, late = MpiRanks(between.of(0), LIMIT_S), MpiRanks(between.of(1), LONG_S)
    with pytest.raises(RankSilent):
        ranks.gather("first")
    assert late.gather("late for the first") == ["first", "late for the first"]
    with pytest.raises(RankSilent, match="rank 1 of 2"):
        ranks.gather("second")


def test_time_in_which_everything_stood_still_is_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that was paused for an hour: all ranks go on where they were."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(LONG_S)
    now[0] += 3600
    assert patience.waited_s <= 1
    looks = 0

    def comes() -> bool:
        nonlocal looks
        looks += 1
        now[0] += 0.5
        return False

    assert not patience.wait(comes)
    assert looks >= 2 * (LONG_S - 1), "all other time is"
