"""Two ranks of one batch: whatever fails on one of them, both have the same batch at every step."""

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.fixes.budget_loop import Loop, Mapping
from tests.fixes.doubles import PlainBatch, SplitBatch, context
from tests.fixes.ranks import Between, RankComm, on_ranks
from tests.fixes.test_batched_admission import Admitting, Counting, Manager
from trtllm_kvfix.fixes.batched_admission.fix import BatchedAdmission
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Communicator, Tag

STEPS = 7
FIXES = "trtllm_kvfix.fixes"
here = threading.local()


def failing_on_rank_0(monkeypatch: pytest.MonkeyPatch, place: str, times: int) -> None:
    module, name = place.rsplit(".", 1)
    left, real = [times], vars(import_module(module))[name]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if here.rank == 0 and here.armed:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError("injected")
        return real(*args, **kwargs)

    monkeypatch.setattr(place, faulty)


def budget_steps(rank: int, comm: Communicator, *, chunked: bool, split: bool, changes: Callable[[int], bool]) -> Any:
    here.rank, here.armed = rank, False
    fuse = Fuse("token-budget")
    loop = Loop(budget=30, chunked=chunked, comm=comm, fuse=fuse)
    loop.prepare(PlainBatch([context(1, 20)]))  # the limits are known from here on
    seen = []
    for step in range(STEPS):
        here.armed = step > 0
        length = 20 if changes(step) else 10
        requests = [context(10 * step + number, length) for number in (2, 3)]
        batch: Any = SplitBatch(requests, []) if split else PlainBatch(requests)
        loop.prepare(batch)
        seen.append([(request.request_id, request.context_chunk_size) for request in batch.context_requests])
    return seen, fuse


@pytest.mark.parametrize("changes", [lambda _: True, lambda step: step % 2 == 0], ids=["every", "every-second"])
@pytest.mark.parametrize(("chunked", "split"), [(False, False), (True, True)])
@pytest.mark.parametrize("times", [0, 1, 10**9], ids=["never", "once", "always"])
@pytest.mark.parametrize(
    "place",
    ["token_budget.fix.enters", "token_budget.fix.batch_tokens", "token_budget.fix.replace_contexts"],
)
def test_a_batch_is_cut_on_both_ranks_or_on_none(
    monkeypatch: pytest.MonkeyPatch, place: str, times: int, chunked: bool, split: bool, changes: Callable[[int], bool]
) -> None:
    failing_on_rank_0(monkeypatch, f"{FIXES}.{place}", times)
    between = Between(2)
    (first, fuse), (second, other) = on_ranks(
        between, lambda rank, comm: budget_steps(rank, comm, chunked=chunked, split=split, changes=changes)
    )
    assert first == second
    cut = [sum(size for _, size in batch) < 40 for batch in first]
    changed = [step for step in range(STEPS) if changes(step)]
    assert cut[0], "the first step is before any fault"
    assert fuse.blown == other.blown == (times > 1)
    if times == 0:
        assert all(cut[step] for step in changed)
    elif times == 1:
        assert cut[-1], "one fault costs one step"
    else:
        assert not any(cut[step] for step in changed if step > 0)


def test_steps_without_a_change_send_nothing() -> None:
    between = Between(2)
    on_ranks(between, lambda rank, comm: budget_steps(rank, comm, chunked=False, split=False, changes=lambda _: False))
    assert between.sent == 0


def admission_steps(rank: int, comm: RankComm) -> Any:
    here.rank, here.armed = rank, True
    fuse = Fuse("batched-admission")
    manager = Manager(Counting())
    manager.mapping = Mapping(2)  # type: ignore[assignment]  # the class has none
    admitting = Admitting(fuse, manager)
    admitting.admission = BatchedAdmission(fuse, Votings(lambda: Voting(fuse, Tag.ADMISSION, find=lambda: comm)))
    seen = []
    for _ in range(STEPS):
        batch = SplitBatch([context(1, 64), context(2, 32)], [])
        admitted = admitting.admit(batch)
        seen.append((admitted, [request.request_id for request in batch.context_requests]))
    return seen, fuse


@pytest.mark.parametrize("times", [0, 1, 10**9], ids=["never", "once", "always"])
@pytest.mark.parametrize("place", ["main_v1_manager", "cached_tokens", "line_up", "replace_contexts", "measure"])
def test_both_ranks_admit_in_the_same_order(monkeypatch: pytest.MonkeyPatch, place: str, times: int) -> None:
    failing_on_rank_0(monkeypatch, f"{FIXES}.batched_admission.fix.{place}", times)
    (first, fuse), (second, other) = on_ranks(Between(2), admission_steps)
    assert first == second
    assert [order for _, order in first] == [[1, 2]] * STEPS, "a batch keeps the scheduler's order"
    before_admission = place in ("main_v1_manager", "cached_tokens", "line_up")
    lost = min(times, STEPS) if before_admission else 0
    assert [admitted for admitted, _ in first] == [[1, 2]] * lost + [[2, 1]] * (STEPS - lost)
    assert fuse.blown == other.blown == (times > 1 and before_admission)


def voting(comm: RankComm, **more: Any) -> Voting:
    made = Voting(Fuse("token-budget"), Tag.BUDGET, find=lambda: comm, **more)
    assert made.may_change(Mapping(comm.Get_size()))
    made.begin()
    return made


def test_three_ranks_change_together_and_one_that_differs_stops_all() -> None:
    def vote(rank: int, comm: RankComm) -> list[bool]:
        ours = voting(comm)
        answers = [ours.agree("the same")]
        ours.begin()
        answers.append(ours.agree("the same" if rank < 2 else "another"))
        ours.begin()
        return [*answers, ours.agree("the same")]

    assert on_ranks(Between(3), vote) == [[True, False, True]] * 3


def test_three_votes_lost_in_a_row_end_it_on_all_ranks() -> None:
    def vote(rank: int, comm: RankComm) -> tuple[list[bool], bool]:
        ours = voting(comm)
        answers = []
        for _ in range(3):
            answers.append(ours.agree(rank))
            ours.begin()
        return answers, ours._fuse.blown

    assert on_ranks(Between(2), vote) == [([False] * 3, True)] * 2


def test_words_on_earlier_steps_are_dropped() -> None:
    def vote(rank: int, comm: RankComm) -> bool:
        ours = voting(comm)
        if rank == 0:
            ours.abstain()
        ours.begin()
        return ours.agree("the same")

    assert on_ranks(Between(2), vote) == [True, True]


def test_a_rank_that_says_nothing_is_not_waited_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """And if it comes too late, it finds that the vote was lost."""
    between = Between(2)
    early, late = voting(between.of(0), patience_s=0), voting(between.of(1), patience_s=0)
    assert not early.agree("the same")
    assert not late.agree("the same")
    assert early._fuse.blown and late._fuse.blown
    assert "rank 1 has not answered" in caplog.text


def test_messages_that_fail_leave_upstreams_batch() -> None:
    class Broken(RankComm):
        def send(self, *_: Any, **__: Any) -> None:
            raise OSError("no such rank")

    ours = voting(Broken(Between(2), 0))
    ours.abstain()
    assert not ours.agree("the same") and ours._fuse.blown


def test_a_rank_that_cannot_read_its_limits_stops_the_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stop at once: they would wait for it otherwise, because it does not come by their steps."""
    failing_on_rank_0(monkeypatch, f"{FIXES}.token_budget.fix.limits_of", 1)

    def steps(rank: int, comm: RankComm) -> Any:
        here.rank, here.armed = rank, True
        fuse = Fuse("token-budget")
        loop = Loop(budget=30, comm=comm, fuse=fuse)
        batches = [PlainBatch([context(10 * step + number, 20) for number in (1, 2)]) for step in range(3)]
        for batch in batches:
            loop.prepare(batch)
        return [len(batch.context_requests) for batch in batches], fuse.blown

    assert on_ranks(Between(2), steps) == [([2, 2, 2], True)] * 2


@pytest.mark.parametrize(
    ("mapping", "ranks", "may", "votes"),
    [
        (None, 1, True, False),
        (None, 2, False, False),  # nobody knows who shares a batch
        (Mapping(1), 1, True, False),
        (Mapping(2), 2, True, True),
        (Mapping(2), 1, False, False),  # they meet by other ways than MPI
        (Mapping(4, enable_attention_dp=True), 4, True, False),  # each rank has batches of its own
        (Mapping(4, pp_size=2), 4, False, False),
    ],
)
def test_who_may_change_a_batch_and_who_has_to_ask(mapping: Any, ranks: int, may: bool, votes: bool) -> None:
    comm = Between(ranks).of(0) if ranks > 1 else None
    ours = Voting(Fuse("token-budget"), Tag.BUDGET, find=lambda: comm, patience_s=0)
    assert ours.may_change(mapping) is may
    if may:
        assert ours.agree("alone") is not votes


class Engine:
    """Stands for an engine's resource manager."""


def test_an_engine_that_is_alone_does_not_end_the_votes_of_another() -> None:
    """One vote of both took the ranks from whichever engine had asked last, and changed batches unasked."""
    comm = Between(2).of(0)
    votings = Votings(lambda: Voting(Fuse("token-budget"), Tag.BUDGET, find=lambda: comm, patience_s=0))
    sharing, alone = Engine(), Engine()
    assert votings.may_change(sharing, Mapping(2))
    assert votings.may_change(alone, Mapping(2, enable_attention_dp=True))
    assert votings.of(alone).agree("nobody is asked")
    assert not votings.of(sharing).agree("the other rank has not answered")


def test_two_engines_that_share_the_same_ranks_leave_their_batches_alone() -> None:
    between, fuse = Between(2), Fuse("token-budget")
    votings = Votings(lambda: Voting(fuse, Tag.BUDGET, find=lambda: between.of(0)))
    first, second = Engine(), Engine()
    assert votings.may_change(first, Mapping(2))
    assert not votings.may_change(second, Mapping(2))
    assert fuse.blown and between.sent == 1, "the other rank hears of it"


def test_an_engine_that_is_gone_counts_no_more() -> None:
    fuse = Fuse("token-budget")
    votings = Votings(lambda: Voting(fuse, Tag.BUDGET, find=lambda: Between(2).of(0)))
    for _ in range(3):
        engine = Engine()
        assert votings.may_change(engine, Mapping(2))
        del engine
    assert not fuse.blown
