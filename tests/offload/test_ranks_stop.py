"""A rank that cannot go on stops all, each with a reason: alone, it would leave the others waiting for it."""

import re
from typing import Any

import pytest

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.native import HostPool
from trtllm_kvfix.offload.host_tier import HostTierMaker
from trtllm_kvfix.offload.ledger import Late, Step, StoreJob
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings

from .rank_threads import RANKS, WORDS, Rank, ThreadRanks, errors_of_all, started


@pytest.fixture
def ranks() -> list[Rank]:
    return started()


def test_ranks_with_different_blocks_refuse_to_start() -> None:
    meeting = ThreadRanks(RANKS)
    made = [Rank(meeting, rank) for rank in range(RANKS)]
    made[1].pool = made[1].device.empty((8, WORDS, 2), "uint32")
    errors = errors_of_all(made, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    difference = (
        "rank 1 differs from rank 0: 8 blocks of 512 bytes, [64, 2] uint32, not 8 blocks of 256 bytes, [64] uint32"
    )
    assert errors == [f"LayoutMismatch: {difference}"] * 2


def test_ranks_with_different_numbers_of_blocks_refuse_to_start() -> None:
    """Each rank's own manager gives out numbers of blocks, and rank 0 sends its own to all ranks."""
    meeting = ThreadRanks(RANKS)
    made = [Rank(meeting, rank) for rank in range(RANKS)]
    made[1].pool = made[1].device.empty((9, WORDS), "uint32")
    errors = errors_of_all(made, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    assert [error.partition(", ")[0] for error in errors] == [
        "LayoutMismatch: rank 1 differs from rank 0: 9 blocks of 256 bytes"
    ] * 2


@pytest.mark.parametrize("bad", range(RANKS))
def test_what_one_rank_cannot_do_stops_the_start_of_all(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pool of the rank that could is given back."""
    meeting = ThreadRanks(RANKS)
    made = [Rank(meeting, rank) for rank in range(RANKS)]
    makers = [HostTierMaker(OffloadSettings(host_bytes=4096)) for _ in made]
    pools: list[HostPool] = []
    pin = HostTierMaker._pin

    def pin_or_not(self: HostTierMaker, device: Any, *how: Any) -> HostPool:
        if self is makers[bad]:
            raise SettingsError("cannot pin 4 KiB")
        pools.append(pin(self, device, *how))
        return pools[-1]

    monkeypatch.setattr(HostTierMaker, "_pin", pin_or_not)
    for rank, maker in zip(made, makers, strict=True):
        rank.worker = OffloadWorker(OffloadSettings(), rank.link, rank.ranks, maker)
    errors = errors_of_all(made, lambda rank: rank.worker.register(rank.device, [rank.pool]))
    assert errors[bad] == "SettingsError: cannot pin 4 KiB"
    assert errors[1 - bad] == f"RankFailed: rank {bad} of 2: SettingsError: cannot pin 4 KiB"
    assert [pool.bytes_pinned for pool in pools] == [0]


@pytest.mark.parametrize("bad", range(RANKS))
def test_a_rank_that_waits_in_vain_for_blocks_does_not_leave_the_others(
    bad: int, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that the device does not end, and whose blocks upstream has given to somebody else."""
    monkeypatch.setattr("trtllm_kvfix.offload.transfers.FENCE_S_MAX", 0.05)
    gate = ranks[bad].device.close_gate(ranks[bad].stream)
    other = ranks[1 - bad].worker._transfers
    assert other is not None
    try:
        for rank in ranks:
            rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
            rank.worker.start(rank.stream)
        assert other._stores.wait(1, 60)

        def next_step(rank: Rank) -> None:
            rank.worker.bind(Step(fences=(1,)))
            rank.worker.start(rank.stream)

        errors = errors_of_all(ranks, next_step)
    finally:
        ranks[bad].device.open_gate(gate)
    assert re.match("StuckTransfer: transfer of 2 blocks of request 7 is (queued|in flight) after", errors[bad])
    assert errors[1 - bad].startswith(f"RankFailed: rank {bad} of 2: StuckTransfer: transfer of 2 blocks")


def test_an_error_of_the_scheduler_side_reaches_every_rank(ranks: list[Rank]) -> None:
    def plan_late(_: object) -> Late:
        raise KvfixError("no plan")

    ranks[0].link.plan_late = plan_late
    errors = errors_of_all(ranks, lambda rank: rank.worker.finished([7], []))
    assert errors == ["KvfixError: no plan", "RankFailed: rank 0 of 2: KvfixError: no plan"]


@pytest.mark.parametrize("bad", range(RANKS))
def test_an_error_while_looking_at_what_has_ended_reaches_every_rank(bad: int, ranks: list[Rank]) -> None:
    def take_ended() -> list[Any]:
        raise KvfixError("no end")

    for rank in ranks:
        rank.worker.bind(Step((StoreJob(1, 7, (0, 1), (3, 4)),)))
        rank.worker.start(rank.stream)
    ranks[bad].worker._transfers.take_ended = take_ended  # type: ignore[union-attr, method-assign]
    errors = errors_of_all(ranks, lambda rank: rank.worker.finished([], []))
    assert (errors[bad], errors[1 - bad]) == ("KvfixError: no end", f"RankFailed: rank {bad} of 2: KvfixError: no end")
