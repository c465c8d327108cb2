"""Upstream's newest loops, scheduler, V2 manager, connector manager and its own V2 runtime, together under the attack
on V2 (tests/torture/v2_attack.py). Each run has a process of its own."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pytest

from integration.upstream.newest_scheduler import SCHEDULED_HAPPENS
from integration.upstream.processes import alone
from integration.upstream.test_answered_connector import FIX, OneByOne
from integration.upstream.test_newest_loops import FOLDER, PLACES
from integration.upstream.test_newest_manager import AWAITED, WAYS
from integration.upstream.v2_compared import Caller, Steps, Theirs
from integration.upstream.v2_driver import Timeline, runtime_of
from integration.upstream.v2_whole import Excerpts, WholeAttack, keeping_blocks, unchecked, whole
from tests.fixes.faults import Fault, Planted, attributes_of, failing
from tests.fixes.proofs import places_of
from tests.torture import v2_attack
from tests.torture.engines import needed
from tests.torture.v2_attack import Way

STEPS = int(os.environ.get("TORTURE_STEPS", "300"))
EXCERPTS = Excerpts(Path(FOLDER) if FOLDER else None)
pytestmark = pytest.mark.skipif(
    not EXCERPTS, reason="KVFIX_UPSTREAM lacks excerpts of a newest part, or of V2's runtime"
)
SIDES = pytest.mark.parametrize("answers", [False, True], ids=["reserves", "answers"])
DANGLING = "ValueError('Dereferencing a dangling rawref')"
ROOM = "fixes.connector_prefixes."
# Each with whether the connector answers; one that reserves does not come by that fix.
FAULTS = [
    *(pytest.param(place, answers, id=f"{place}-{answers}") for place in PLACES for answers in (False, True)),
    *(pytest.param(place, True, id=str(place)) for place in places_of(FIX)),
]
LOOPS = [Way("F", overlap=overlap, guesses=(0,)) for overlap in (True, False)]


class Seen(NamedTuple):
    tables: int  # that arrived torn
    wrong: list[str]
    leftovers: list[str]
    error: str
    unraised: list[str]  # errors of what has no caller, such as the end of a page
    faults: list[str]  # of ours
    did: dict[str, int]
    planted: int  # faults of ours that were raised on purpose


def require_right(seen: Seen, *, faults: Sequence[str] = (), loads: bool = True) -> None:
    assert (seen.tables, seen.wrong, seen.leftovers) == (0, [], [])
    assert (seen.error, seen.unraised, seen.faults) == ("", [], [*faults])
    assert not loads or {"load at once", "load in the background"} <= seen.did.keys()


@SIDES
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way, *, answers: bool) -> None:
    seen = attack_alone(way, needed(way.variant), answers=answers)
    require_right(seen)
    assert SCHEDULED_HAPPENS - seen.did.keys() == set()


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize(("place", "answers"), FAULTS)
def test_a_fault_of_ours_at_any_place_costs_time_alone(place: Fault, *, answers: bool, always: bool) -> None:
    by_layer = place.llm_args.get("kv_cache_config", {}).get("enable_swa_scratch_reuse", False)
    way = Way("F", awaited=False, by_layer=by_layer, trim=True, guesses=(0,))
    seen = attack_alone(way, needed("F"), steps=STEPS // 3, answers=answers, fault=(place, always))
    assert seen.planted > 0, f"nothing comes by {place.name}"
    refuses = always and place.name.startswith(ROOM)  # what a connector would load; upstream computes it
    require_right(seen, faults=[f"Injected: {place.name}"], loads=not refuses)


@SIDES
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_upstream_alone_reads_wrong_tables_where_a_request_fails_behind_its_launch(way: Way, *, answers: bool) -> None:
    seen = attack_alone(way, [], steps=100, answers=answers)
    assert seen.error == "" and seen.tables > 0 and seen.wrong


@SIDES
@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_none_fails_there_and_upstream_waits_pages_given_back_are_enough(way: Way, *, answers: bool) -> None:
    require_right(attack_alone(way, [FIX] * answers, failing=0, answers=answers))


class InTurn(OneByOne, WholeAttack):
    """One request at a time, of each two of which the second reuses what the first has been loaded."""


@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_pages_that_nobody_has_written_are_reused_behind_an_answer_alone(way: Way, *, answers: bool) -> None:
    others = [each for each in needed("F") if each != FIX]
    seen = attack_alone(way, others, steps=60, active=1, kind=InTurn, failing=0, answers=answers)
    assert (seen.tables, seen.error, bool(seen.wrong)) == (0, "", answers)


class WaitsForNothing(Timeline):
    def wait(self, stream: int, event: int) -> None:
        """Goes on."""


@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_the_judge_sees_loads_that_wait_for_nothing(way: Way, *, answers: bool) -> None:
    seen = attack_alone(way, needed("F"), WaitsForNothing, answers=answers)
    assert (seen.tables, seen.error) == (0, "") and seen.wrong != []


# Where the runtime itself fails. All other runs go without these three, else most would end.


@SIDES
def test_a_check_of_the_runtime_refuses_prefixes_behind_what_is_reused(*, answers: bool) -> None:
    """Servers do not run it."""
    seen = attack_alone(LOOPS[0], needed("F"), checks_caches=True, answers=answers)
    assert (seen.error, seen.tables) == ("AssertionError in _check_sanity", 0)


@pytest.mark.parametrize("fixes", [[FIX], needed("F")], ids=["one fix", "all fixes"])
@SIDES
def test_the_runtime_loses_blocks_that_are_held_and_a_commit_ends_the_loop(*, fixes: list[str], answers: bool) -> None:
    """In the middle of a call of upstream's, with our fixes and without most."""
    seen = attack_alone(LOOPS[1], fixes, steps=10000, failing=0, loses_blocks=True, answers=answers)
    assert seen.error == DANGLING and (len(fixes) == 1 or seen.tables == 0)


# A cache has committed three blocks. A prefix moves it past them. Others take the pages that its window has passed.
PASSED: Steps = (
    ("create", 1, [[]]), ("resume", 1, []), ("resize", 1, [12, None]), ("commit", 1, [[*range(12)]]),
    ("resize", 1, [32, 28]),
    ("create", 2, [[]]), ("resume", 2, []), ("resize", 2, [20, None]), ("commit", 2, [[*range(100, 120)]]),
    ("close", 2, []), ("create", 3, [[]]), ("resume", 3, []), ("resize", 3, [32, None]),
    ("commit", 1, [[*range(12, 28)]]),
)  # fmt: skip


@pytest.mark.parametrize("loses_blocks", [True, False], ids=["as it is", "keeping blocks"])
def test_a_commit_fails_behind_a_block_that_the_runtime_has_lost(*, loses_blocks: bool) -> None:
    seen = alone(_passed, loses_blocks)
    assert seen == ("raises ValueError: Dereferencing a dangling rawref" if loses_blocks else None)


def _passed(loses_blocks: bool, sending: Any) -> None:
    with (
        runtime_of(EXCERPTS.tree, Timeline(Random(1)), lambda *_: None) as runtime,
        unchecked(),
        nullcontext() if loses_blocks else keeping_blocks(),
    ):
        caller = Caller(Theirs(runtime, host_pages=0))
        sending.send([caller.do(*step[:2], *step[2]) for step in PASSED][-1])
        os._exit(0)


class ShortFirst(InTurn):
    """Nothing is shared but by the first two: one that is shorter than a block, and one that begins with it."""

    def _drawn(self) -> Any:
        self._numbers += 1
        return self.server.request(self._numbers, [5, 6, 7, 8, 9][: 1 + 2 * self._numbers], 2)


@SIDES
@pytest.mark.parametrize("way", LOOPS, ids=str)
def test_a_prompt_that_is_shorter_than_a_block_may_make_the_next_commit_fail(way: Way, *, answers: bool) -> None:
    """As test_v2_compared.py has it. In all other runs prompts are longer."""
    seen = attack_alone(way, needed("F"), steps=60, active=1, kind=ShortFirst, failing=0, answers=answers)
    assert (seen.error, seen.tables) == (DANGLING, 0)


def attack_alone(
    way: Way, fixes: Sequence[str], timeline: type[Timeline] = Timeline, steps: int = STEPS, **options: Any
) -> Seen:
    seen: Seen = alone(_attack, way, fixes, timeline, steps, options)
    return seen


def _attack(
    way: Way, fixes: Sequence[str], timeline: type[Timeline], steps: int, options: dict[str, Any], sending: Any
) -> None:
    unraised: list[str] = []
    sys.unraisablehook = lambda found: unraised.append(repr(found.exc_value))
    with (
        way.build(),
        mock.patch.object(v2_attack, "ACTIVE", options.pop("active", v2_attack.ACTIVE)),
        planted_in(options.pop("fault", None)) as planted,
        whole(EXCERPTS, way, fixes, timeline, **options) as (attack, faults),
    ):
        error = ""
        try:
            attack.run(steps, until=SCHEDULED_HAPPENS if fixes else ())
        except Exception as raised:
            error = _said(raised)
        leftovers = [] if error else attack.leftovers()
        tables, wrong = len(attack.corrupt_tables), attack.contents.wrong[:3]
        sending.send(Seen(tables, wrong, leftovers, error, unraised, faults(), attack.did, planted.raised))
        os._exit(0)


@contextmanager
def planted_in(fault: tuple[Fault, bool] | None) -> Iterator[Planted]:
    if fault is None:
        yield Planted()
        return
    place, always = fault
    with attributes_of(place), failing(place.name, always=always) as planted:
        yield planted


def _said(error: Exception) -> str:
    if not isinstance(error, AssertionError):
        return repr(error)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f"AssertionError in {place.tb_frame.f_code.co_name}" if place is not None else "AssertionError"
