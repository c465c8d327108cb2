"""Ranks keep equal books, and stop together where they do not."""

import pytest

from tests.fixes.ranks import Between, RankComm, on_ranks
from tests.managers.making import bench
from trtllm_kvfix import native
from trtllm_kvfix.managers.between_ranks import RankComparison
from trtllm_kvfix.ranks import RanksDiffer, Tag


def manager() -> native.BlockManager:
    return native.BlockManager(native.BlockManagerConfig(tokens_per_block=4, blocks_primary=16))


def outcome(comm: RankComm, *, differs: bool, iterations: int = 4, patience_s: float = 30) -> str:
    """Runs a rank that compares in every second iteration, and says how it ended. One that differs does so in the
    third."""
    core = manager()
    comparison = RankComparison(core, 1, find=lambda: comm, every=2, patience_s=patience_s)
    for iteration in range(1, iterations + 1):
        tokens = [iteration] * (5 if differs and iteration == 3 else 6)
        core.add_sequence(native.SequenceRequest(iteration, tokens))
        try:
            comparison.step()
        except RanksDiffer as error:
            return f"{iteration}: {error}"
    return "equal"


def test_equal_books_go_on_and_are_seldom_compared() -> None:
    between = Between(3)
    assert on_ranks(between, lambda _, comm: outcome(comm, differs=False)) == ["equal"] * 3
    assert between.sent == 2 * 3 * 2


def test_all_ranks_stop_in_the_iteration_in_which_one_differs() -> None:
    found = on_ranks(Between(3), lambda rank, comm: outcome(comm, differs=rank == 1))
    assert [each[:2] for each in found] == ["4:"] * 3
    assert "ranks [1] in iteration 4" in found[0]
    assert "ranks [0, 2] in iteration 4" in found[1]


def test_a_rank_that_says_nothing_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    assert outcome(Between(2).of(0), differs=False, iterations=2, patience_s=0) == "equal"
    assert "rank 1 did not compare" in caplog.text


def test_words_of_an_earlier_manager_are_dropped() -> None:
    def work(rank: int, comm: RankComm) -> str:
        comm.send((0, 99, 1), dest=1 - rank, tag=Tag.BOOKS)
        return outcome(comm, differs=False)

    assert on_ranks(Between(2), work) == ["equal"] * 2


def test_every_iteration_of_a_manager_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        steps: list[int] = []
        monkeypatch.setattr(b.impl._comparison, "step", lambda: steps.append(1))
        b.prepare()
        b.prepare()
        assert len(steps) == 2
