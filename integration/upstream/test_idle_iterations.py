"""In which iterations upstream's newest loops call a connector's worker. Ours sleeps in those that compute nothing."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from integration.upstream.newest_connector import ConnectedAttack
from integration.upstream.test_answered_connector import LOOPS, OneByOne, one_at_a_time
from integration.upstream.test_newest_connector import newest, pytestmark
from tests.torture.v2_attack import Way
from trtllm_kvfix.offload.ledger import Link
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

__all__ = ["one_at_a_time", "pytestmark"]
COMPUTES = ("batch", "start", "forward")
ALL_LOAD = ("batch", "start")  # the whole batch was taken out
IDLE = ("rest",)
ELSEWHERE = ("batch", "rest")  # another rank has none, so nobody computes
SIDES = pytest.mark.parametrize("answers", [False, True], ids=["reserves", "answers"])


@dataclass
class Iterations:
    """What happens in each. It is a carrier, too: our worker, which has no tier, hears upstream's calls."""

    over: list[tuple[str, ...]] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    others_are_idle: bool = False

    def begin(self) -> None:
        if self.current:
            self.over.append(tuple(self.current))
        self.current = []

    def look(self) -> None:
        """Nothing is out."""

    def rest(self) -> None:
        self.current.append("rest")

    is_there, chooser = False, None


def iterations_of(attack: ConnectedAttack, elsewhere: float = 0) -> list[tuple[str, ...]]:
    seen = Iterations()
    ours = OffloadWorker(OffloadSettings(), Link(), OneRank(), mock.Mock(), carrier=seen)  # type: ignore[arg-type]
    theirs, executor = attack.connector.worker, attack.executor
    fetch, start, finished = executor._fetch_new_requests, theirs.start_load_kv, theirs.get_finished
    schedule, forward = executor.scheduler.schedule_request, executor.model_engine._forward_step

    def fetching(**given: Any) -> None:
        seen.begin()
        seen.others_are_idle = attack.random.random() < elsewhere
        fetch(**given)

    def voting(batch: Any) -> tuple[bool, bool]:
        """Batches that generate are queued: the rig cannot take back what was allocated for them."""
        is_mine = batch.batch_size > 0
        return is_mine and not (seen.others_are_idle and not batch.generation_requests), is_mine

    def scheduling(*given: Any) -> Any:
        output = schedule(*given)
        seen.current += ["batch"] if output.context_requests or output.generation_requests else []
        return output

    def starting(stream: Any) -> None:
        seen.current.append("start")
        ours.start(stream.cuda_stream)
        start(stream)

    def forwarding(*given: Any) -> Any:
        seen.current.append("forward")
        return forward(*given)

    def finishing(*given: Any) -> Any:
        ours.finished(*given)
        return finished(*given)

    with (
        mock.patch.multiple(executor, _fetch_new_requests=fetching, _can_queue=voting),
        mock.patch.object(executor.scheduler, "schedule_request", scheduling),
        mock.patch.object(executor.model_engine, "_forward_step", forwarding),
        mock.patch.multiple(theirs, start_load_kv=starting, get_finished=finishing),
    ):
        attack.run(60)
    return seen.over


@pytest.mark.usefixtures("one_at_a_time")
@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_a_load_starts_in_one_iteration_and_those_that_wait_for_it_start_nothing(way: Way, *, answers: bool) -> None:
    with way.build(), newest(way, kind=OneByOne, failing=0, answers=answers) as (attack, _):
        seen = iterations_of(attack)
        loads = attack.did["load in the background"]
    assert set(seen) == {COMPUTES, ALL_LOAD, IDLE}
    assert Counter(seen)[ALL_LOAD] == loads
    assert {after for before, after in pairwise(seen) if before == ALL_LOAD} == {IDLE}


@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_no_iteration_that_computes_sleeps_whatever_the_batch(way: Way, *, answers: bool) -> None:
    with way.build(), newest(way, answers=answers) as (attack, _):
        seen = set(iterations_of(attack))
    assert COMPUTES in seen and seen <= {COMPUTES, ALL_LOAD, IDLE}


@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_nothing_starts_where_another_rank_has_no_batch(way: Way, *, answers: bool) -> None:
    """Ranks that share attention's work compute together, or not at all."""
    with way.build(), newest(way, failing=0, answers=answers) as (attack, _):
        seen = set(iterations_of(attack, elsewhere=0.8))
    assert COMPUTES in seen and ELSEWHERE in seen and seen <= {COMPUTES, ALL_LOAD, IDLE, ELSEWHERE}
