"""Ranks of one model end transfers at different times, or differently. Only what all have is used."""

from typing import Any

import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Late, Link, LoadJob, Step, StoreJob
from trtllm_kvfix.offload.transfers import LayoutMismatch
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank, agreed_seed

from .rank_threads import RANKS, WORDS, Rank, errors_of_all, on_all, started


@pytest.fixture
def ranks() -> list[Rank]:
    return started()


def test_the_smallest_pool_decides(ranks: list[Rank]) -> None:
    assert [rank.link.slots for rank in ranks] == [15, 15]


def test_a_store_counts_when_the_last_rank_has_it(ranks: list[Rank]) -> None:
    gate = ranks[1].device.close_gate(ranks[1].stream)
    step = Step((StoreJob(1, 7, (0, 1), (3, 4)),))
    for rank in ranks:
        rank.worker.bind(step)
        rank.worker.start(rank.stream)
    ranks[0].link.plan_late = lambda _: Late(closed=(7,))
    finished = [7]

    def once(rank: Rank) -> tuple[list[int], list[int]]:
        return rank.worker.finished(finished, [])

    transfers = ranks[0].worker._transfers
    assert transfers is not None
    assert transfers._stores.wait(1, 60)
    assert on_all(ranks, once) == [([], [])] * 2
    finished = []
    assert on_all(ranks, once) == [([], [])] * 2
    assert not ranks[0].link.ledger.ended
    ranks[1].device.open_gate(gate)
    saved: list[Any] = []
    while not saved:
        saved = [ids for ids, _ in on_all(ranks, once) if ids]
    assert saved == [[7], [7]], "on both in the same iteration"
    assert [(ended.job, ended.error) for ended in ranks[0].link.ledger.ended] == [(1, "")]
    assert not ranks[1].link.ledger.ended, "the scheduler side is on rank 0"


def test_a_job_begins_once_whatever_becomes_of_it(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    assert ranks[0].worker._transfers is not None
    monkeypatch.setattr(ranks[0].worker._transfers, "_enqueue", lambda job, *_: begun.append(job.number))
    ranks[0].worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)), LoadJob(2, 8, (2,), (5,), 0))))
    for _ in range(2):
        ranks[0].worker.start(ranks[0].stream)
    assert begun == [2, 1], "loads come first"


def test_a_fence_that_is_over_before_it_begins_keeps_no_rank_waiting(ranks: list[Rank]) -> None:
    """Rank 0 has the record of a job until its scheduler side has looked, and the others have forgotten it."""
    for rank in ranks:
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
        rank.worker.start(rank.stream)
    for rank in ranks:
        rank.worker.bind(Step(fences=(1,)))
        rank.worker._stream = None  # upstream has not come to the next step's copies
        assert rank.worker._transfers is not None
        assert rank.worker._transfers._stores.wait(1, 60)
    while not ranks[0].link.ledger.ended:
        on_all(ranks, lambda rank: rank.worker.finished([], []))
    assert [len(rank.link.ledger) for rank in ranks] == [1, 0]
    on_all(ranks, lambda rank: rank.worker.start(rank.stream))


def test_a_job_whose_blocks_are_given_away_before_it_begins_never_begins(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)), StoreJob(2, 8, (2,), (5,)))))
        rank.worker.bind(Step(fences=(1,)))
    on_all(ranks, lambda rank: rank.worker.start(rank.stream))
    assert [rank.worker._transfers._stores.wait(2, 60) for rank in ranks if rank.worker._transfers] == [True] * RANKS
    while len(ranks[0].link.ledger.ended) < 2:
        on_all(ranks, lambda rank: rank.worker.finished([], []))
    ended = {each.job: each.error for each in ranks[0].link.ledger.ended}
    assert "not begun" in ended[1] and ended[2] == ""


@pytest.mark.parametrize("bad", range(RANKS))
def test_a_load_that_fails_on_one_rank_is_computed_on_all(bad: int, ranks: list[Rank]) -> None:
    transfers = ranks[bad].worker._transfers
    assert transfers is not None
    assert transfers._loads.close(10)
    for rank in ranks:
        rank.worker.bind(Step((LoadJob(1, 7, (0, 1), (3, 4), 12),)))
        rank.worker.start(rank.stream)
    loading, seen = [7], list[list[int]]()
    while not seen:
        told, loading = loading, []
        seen = [ids for _, ids in on_all(ranks, lambda rank, told=told: rank.worker.finished([], told)) if ids]  # type: ignore[misc]
    assert seen == [[7], [7]]
    assert [rank.worker.recompute for rank in ranks] == [{7: 12}, {7: 12}]
    assert "not begun" in ranks[0].link.ledger.ended[0].error


def test_a_pool_that_changes_is_refused_and_the_same_again_is_not(ranks: list[Rank]) -> None:
    on_all(ranks, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    for rank in ranks:
        rank.pool = rank.device.empty((9, WORDS), "uint32")
    with pytest.raises(LayoutMismatch, match="was built for"):
        on_all(ranks, lambda rank: rank.worker.register(rank.device, [rank.pool]))


def test_numbers_out_of_range_fail_before_the_device_sees_them(ranks: list[Rank]) -> None:
    steps = (Step((StoreJob(1, 7, (8,), (0,)),)), Step((LoadJob(2, 8, (0,), (16,), 0),)))
    for rank in ranks:
        for step in steps:
            rank.worker.bind(step)
            rank.worker.start(rank.stream)
    on_all(ranks, lambda rank: rank.worker.finished([], []))
    assert [ended.job for ended in ranks[0].link.ledger.ended] == [1, 2]
    assert all("not begun" in ended.error and "the pool changed" in ended.error for ended in ranks[0].link.ledger.ended)


def test_a_load_that_was_never_told_is_never_over(ranks: list[Rank]) -> None:
    for told in ([9], [], []):
        assert on_all(ranks, lambda rank, told=told: rank.worker.finished([], told)) == [([], [])] * 2  # type: ignore[misc]


def test_each_rank_counts_its_bytes(ranks: list[Rank]) -> None:
    before = counters.offload_stored_bytes.value
    for rank in ranks:
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
        rank.worker.start(rank.stream)
    while not ranks[0].link.ledger.ended:
        on_all(ranks, lambda rank: rank.worker.finished([], []))
    assert counters.offload_stored_bytes.value - before == RANKS * 2 * WORDS * 4


def test_a_step_that_is_told_twice_over_before_it_begins_loses_nothing(ranks: list[Rank]) -> None:
    """Upstream may report an empty step, or another one, before the first has begun."""
    for rank in ranks:
        first, second = (Step((StoreJob(job, 6 + job, (job,), (job,)),)) for job in (1, 2))
        for step in (first, Step(), second, None):
            rank.worker.bind(step)
        rank.worker.start(rank.stream)
    while len(ranks[0].link.ledger.ended) < 2:
        on_all(ranks, lambda rank: rank.worker.finished([], []))
    assert [(ended.job, ended.error) for ended in ranks[0].link.ledger.ended] == [(1, ""), (2, "")]


def test_a_step_that_is_told_and_never_started_begins_when_upstream_asks_what_has_ended(ranks: list[Rank]) -> None:
    """Ranks vote once more after it was reported, and one may be against running it."""
    for rank in ranks:
        rank.worker.start(rank.stream)
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
    while not ranks[0].link.ledger.ended:
        on_all(ranks, lambda rank: rank.worker.finished([], []))
    assert [(ended.job, ended.error) for ended in ranks[0].link.ledger.ended] == [(1, "")]


def test_ranks_of_attention_data_parallelism_meet_at_the_start_alone(ranks: list[Rank]) -> None:
    """Each has requests, a scheduler side and a host tier of its own, so each learns of its own transfers."""
    for rank in ranks:
        rank.link = Link()
        rank.worker = OffloadWorker(OffloadSettings(), rank.link, OneRank(), rank.make_pool, at_start=rank.ranks)
    on_all(ranks, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    assert [rank.link.slots for rank in ranks] == [16, 15]
    for rank in ranks:  # one behind the other: whoever waited for the other would wait in vain
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
        rank.worker.start(rank.stream)
        transfers = rank.worker._transfers
        assert transfers is not None
        assert transfers._stores.wait(1, 60)
        rank.worker.finished([], [])
        assert [(ended.job, ended.error) for ended in rank.link.ledger.ended] == [(1, "")]


def test_a_rank_of_attention_data_parallelism_that_cannot_start_stops_the_others(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.worker = OffloadWorker(OffloadSettings(), Link(), OneRank(), rank.make_pool, at_start=rank.ranks)
    pools: list[list[Any]] = [[], [ranks[1].pool]]
    errors = errors_of_all(ranks, lambda rank: rank.worker.register(rank.device, pools[rank.ranks.rank]))
    assert errors[0].startswith("LayoutMismatch: there is no pool")
    assert errors[1].startswith("RankFailed: rank 0 of 2: LayoutMismatch")


def test_ranks_have_one_seed_that_nobody_else_has(ranks: list[Rank]) -> None:
    seeds = [on_all(ranks, lambda rank: agreed_seed(rank.worker._ranks)) for _ in range(2)]
    assert all(one == other for one, other in seeds)
    assert len({seed for pair in seeds for seed in pair} | {agreed_seed(OneRank())}) == 3
