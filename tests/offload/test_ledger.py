"""A job goes the way that is drawn, on each rank, and no other."""

import re
from pathlib import Path
from typing import Any

import pytest

from trtllm_kvfix.offload import ledger as module
from trtllm_kvfix.offload.ledger import NEXT, Ended, FetchJob, JobState, Ledger, LoadJob, PutJob, StoreJob, WrongTurn

JOB = StoreJob(1, 7, (0, 1), (3, 4))
PUT = PutJob(1, 7, (b"k",), (3,))
PAGE = Path(__file__).parents[2] / "docs/offload.md"


def test_a_job_has_one_record_from_its_plan_until_it_is_applied() -> None:
    ledger = Ledger()
    record = ledger.plan(JOB, "what the scheduler side must know")
    seen = [record.state]
    assert ledger.take_step().stores == (JOB,) and not ledger.take_step()
    ledger.queue(JOB)
    seen.append(record.state)
    ledger.end_here(Ended(1, ""))
    seen.append(record.state)
    assert ledger.take_ended_here() == [Ended(1, "")] and ledger.take_ended_here() == []
    ledger.end_everywhere(Ended(1, ""), has_scheduler=True)
    seen.append(record.state)
    assert ledger.take_ended_everywhere() == [(record, Ended(1, ""))] and len(ledger) == 0
    seen.append(record.state)
    assert seen == [each for each in JobState if each is not JobState.IN_FLIGHT], "which is a lane's to say"


def test_where_no_scheduler_side_is_nothing_is_left_to_apply() -> None:
    ledger = Ledger()
    ledger.queue(JOB)
    ledger.end_here(Ended(1, ""))
    ledger.end_everywhere(Ended(1, ""), has_scheduler=False)
    assert len(ledger) == 0 and ledger.ended == []


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("job", [JOB, LoadJob(1, 7, (0, 1), (3, 4), 0), FetchJob(1, 7, (b"k",), (3,)), PUT])
def test_nothing_is_left_of_a_job_wherever_it_was_found(job: Any, is_begun: bool) -> None:
    ledger = Ledger()
    ledger.queue(job)
    ledger.hold_up(1)
    assert list(ledger.waiting(type(job))) == [job]
    if is_begun:
        record = ledger.begin(1, 5.0)
        of_transfer = [record] if isinstance(job, StoreJob | LoadJob) else []
        assert ledger.begun_before(6.0) == ledger.begun() == of_transfer and ledger.begun_before(5.0) == []
    ledger.end_here(ended := Ended(1, ""))
    assert not ledger.waiting(type(job)) and ledger.begun() == []
    assert (list(ledger.requests_in_transfer()) == [7]) is isinstance(job, StoreJob | LoadJob)
    ledger.take_ended_here()
    ledger.take_fences()
    ledger.end_everywhere(ended, has_scheduler=False)
    left = {name: value for name, value in vars(ledger).items() if name != "_numbers" and value}
    assert all(not any(of_kind.values()) for of_kind in left.values()), left
    assert set(left) == {"_of_kind", "_waiting"}, "which have an entry for each kind"


def test_what_was_told_to_nobody_is_taken_out_of_the_plan() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.plan(JOB._replace(number=number, request_id=number), None)
    assert ledger.take_out(1, LoadJob) == []
    (out,) = ledger.take_out(1, StoreJob)
    assert (out.number, out.state) == (1, JobState.APPLIED)
    assert [job.number for job in ledger.take_step().stores] == [2]


def test_a_turn_that_is_not_drawn_raises() -> None:
    ledger = Ledger()
    ledger.queue(JOB)
    with pytest.raises(WrongTurn, match="job 1 is queued and cannot be queued next"):
        ledger.queue(JOB)
    ledger.end_here(Ended(1, ""))
    with pytest.raises(WrongTurn, match="job 1 is ended here and cannot be ended here next"):
        ledger.end_here(Ended(1, ""))


def test_slots_are_counted_by_kind() -> None:
    ledger = Ledger()
    load = ledger.plan(LoadJob(1, 7, (0, 1), (3, 4), 0), None)
    ledger.plan(PutJob(2, 7, (b"k",), (5,)), None)
    load.job = LoadJob(1, 7, (), (), 0)
    assert (ledger.slots_of(LoadJob), ledger.slots_of(PutJob), ledger.slots_of(StoreJob)) == (0, 1, 0)
    ledger.take_out(7, PutJob)
    assert ledger.slots_of(PutJob) == 0


def test_drawings_have_the_states_in_their_order() -> None:
    words = [state.value for state in JobState]
    assert set(NEXT) == set(JobState) - {JobState.IN_FLIGHT}
    for text in (module.__doc__ or "", PAGE.read_text()):
        (line,) = [line for line in text.splitlines() if "planned ---> queued" in line]
        assert re.split(r" -+> ", line.strip()) == words
