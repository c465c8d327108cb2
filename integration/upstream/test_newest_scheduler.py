"""Upstream's newest V2 scheduler between its newest loops, V2 manager and connector manager, under the attack on V2
(tests/torture/v2_attack.py)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from integration.upstream.newest_connector import ConnectedAttack
from integration.upstream.newest_scheduler import (
    SCHEDULED_HAPPENS,
    let_it_schedule,
    newest_scheduler,
    source_in,
)
from integration.upstream.test_answered_connector import FIX, LOOPS, OneByOne, one_at_a_time
from integration.upstream.test_newest_connector import CONNECTOR, newest
from integration.upstream.test_newest_loops import FOLDER, SOURCE
from integration.upstream.test_newest_manager import AWAITED, MANAGER, WAYS
from tests.torture.engines import needed
from tests.torture.test_v2_attack import require_right
from tests.torture.v2_attack import Way
from trtllm_kvfix.offload.patches import HAS_STARTED, counting_loads_as_a_start

__all__ = ["one_at_a_time"]
STARTED = HAS_STARTED.split(".")[-1]
SCHEDULER = source_in(Path(FOLDER) if FOLDER else None)
pytestmark = pytest.mark.skipif(
    not (SOURCE and MANAGER and CONNECTOR and SCHEDULER),
    reason="KVFIX_UPSTREAM names no excerpts of the newest executor, V2 manager, connector manager and V2 scheduler",
)
SIDES = pytest.mark.parametrize("answers", [False, True], ids=["reserves", "answers"])


@contextmanager
def scheduled(way: Way, fixes: Sequence[str] = (), **options: Any) -> Iterator[tuple[ConnectedAttack, list[str]]]:
    with newest(way, fixes, **options) as (attack, found), newest_scheduler(SCHEDULER) as kind:
        let_it_schedule(attack, kind)
        yield attack, found


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_upstream_alone_reads_wrong_tables_where_a_request_fails_behind_its_launch(way: Way) -> None:
    with way.build(), scheduled(way) as (attack, _):
        attack.run(100)
        assert attack.corrupt_tables and attack.contents.wrong


@SIDES
@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_none_fails_there_and_upstream_waits_pages_given_back_are_enough(way: Way, *, answers: bool) -> None:
    with way.build(), scheduled(way, [FIX] * answers, failing=0, answers=answers) as (attack, _):
        attack.run()
        require_right(attack)


@SIDES
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way, *, answers: bool) -> None:
    with way.build(), scheduled(way, needed(way.variant), answers=answers) as (attack, found):
        attack.run()
        require_right(attack)
        assert SCHEDULED_HAPPENS - attack.did.keys() == set()
    assert found == []


def test_loaded_prompts_and_an_answer_may_wait_for_each_other_and_upstream_does_not_see_it() -> None:
    """Upstream ends a loop in which nobody has gone on for 1,000 passes. This one turns on: each suspension of the
    answer counts as progress. By default a request is not resumed in a full pool, so that only the first would."""
    way = Way("F", overlap=False, guesses=(0,))
    with way.build(), newest(way, [FIX], failing=0, answers=True) as (attack, _), newest_scheduler(SCHEDULER) as kind:
        attack.manager.impl.levels.runtime.max_util_for_resume = 1.0
        let_it_schedule(attack, kind, patience=None)
        with pytest.raises(AssertionError, match="nothing goes on any more"):
            attack.run()
        attack.executor.event_loop_error = None
        waiting = attack.executor.scheduler
        assert waiting.stalled > 2 * waiting.theirs._DEADLOCK_STALL_ITERS and waiting.theirs._stalled_schedules == 0
        answer, *prompts = attack.executor.active_requests
        assert answer.is_generation_in_progress_state
        loaded = [each for each in prompts if attack.manager.is_request_active(each.request_id)]
        assert loaded and all(each.is_first_context_chunk for each in loaded)


@SIDES
@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_prompts_that_have_loaded_give_way_where_our_connector_says_so(way: Way, *, answers: bool) -> None:
    with (
        way.build(),
        newest(way, [FIX] * answers, failing=0, answers=answers) as (attack, _),
        newest_scheduler(SCHEDULER) as kind,
        mock.patch.object(kind, STARTED, staticmethod(counting_loads_as_a_start(getattr(kind, STARTED)))),
    ):
        attack.manager.impl.levels.runtime.max_util_for_resume = 1.0
        let_it_schedule(attack, kind, patience=None)
        attack.run(1000)
        require_right(attack)


@pytest.mark.usefixtures("one_at_a_time")
@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_pages_that_nobody_has_written_are_reused_behind_an_answer_alone(way: Way, *, answers: bool) -> None:
    others = [each for each in needed("F") if each != FIX]
    with way.build(), scheduled(way, others, kind=OneByOne, failing=0, answers=answers) as (attack, _):
        attack.run(60)
        assert attack.corrupt_tables == [] and bool(attack.contents.wrong) == answers


@SIDES
def test_a_connector_hears_the_same_with_all_fixes(*, answers: bool) -> None:
    heard, way = [], Way("F", guesses=(0,))
    for fixes in ([FIX] * answers, needed("F")):
        with way.build(), scheduled(way, fixes, failing=0, answers=answers) as (attack, _):
            attack.run(150)
            heard.append([str(each) for each in attack.side.heard])
    alone, fixed = heard
    assert alone == fixed and len(alone) > 300
