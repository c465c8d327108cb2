"""The attack on V2 (tests/torture/v2_attack.py) with upstream's own runtime below it."""

import os
from contextlib import nullcontext
from random import Random
from typing import Any, NamedTuple

import pytest

from integration.upstream import newest_manager
from integration.upstream.newest_loops import let_it_rebalance, newest_loops, source_in
from integration.upstream.processes import alone
from integration.upstream.test_v2_compared import TREE, pytestmark  # noqa: F401
from integration.upstream.v2_driver import Timeline, runtime_of
from integration.upstream.v2_levels import Maker
from tests.fixes.applied import applied
from tests.torture.engines import needed
from tests.torture.v2_attack import Way, attacked

STEPS = int(os.environ.get("TORTURE_STEPS", "200"))
WAYS = [
    Way("C"),
    Way("C", overlap=False),
    Way("F", awaited=False),
    Way("F", awaited=False, trim=True),
    Way("F", draft=True),
]
LOOPS, MANAGER = source_in(TREE.parent), newest_manager.source_in(TREE.parent)
NEWEST = [
    Way("F", trim=True),
    Way("F", overlap=False, trim=True),
    Way("F", awaited=False, trim=True),
    Way("F", draft=True, trim=True),
]
WHOLE = [Way("F", overlap=overlap, trim=trim, guesses=(0,)) for overlap in (True, False) for trim in (False, True)]


class Seen(NamedTuple):
    tables: int  # that arrived torn
    wrong: list[str]
    moves: int
    leftovers: list[str]
    error: str


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("fixed", [True, False], ids=["all fixes", "off"])
def test_upstreams_own_runtime_under_attack(way: Way, fixed: bool) -> None:
    seen = attack_alone(way, fixed, Timeline)
    assert seen.error == "" and seen.moves > 0
    if fixed:
        assert (seen.tables, seen.wrong, seen.leftovers) == (0, [], [])
    else:
        assert seen.tables > 0


@pytest.mark.skipif(not LOOPS, reason="KVFIX_UPSTREAM names no excerpts of the newest executor")
@pytest.mark.parametrize("way", NEWEST, ids=str)
@pytest.mark.parametrize("fixed", [True, False], ids=["all fixes", "off"])
def test_upstreams_own_runtime_below_its_newest_loops(way: Way, fixed: bool) -> None:
    seen = attack_alone(way, fixed, Timeline, LOOPS)
    assert seen.error == "" and seen.moves > 0
    if fixed:
        assert (seen.tables, seen.wrong, seen.leftovers) == (0, [], [])
    else:
        assert seen.tables > 0


@pytest.mark.skipif(not (LOOPS and MANAGER), reason="KVFIX_UPSTREAM names no excerpts of the newest loops and manager")
@pytest.mark.parametrize("way", WHOLE, ids=str)
@pytest.mark.parametrize("fixed", [True, False], ids=["all fixes", "off"])
def test_upstreams_newest_loops_manager_and_runtime(way: Way, fixed: bool) -> None:
    seen = attack_alone(way, fixed, Timeline, LOOPS, MANAGER)
    assert seen.error == "" and seen.moves > 0
    if fixed:
        assert (seen.tables, seen.wrong, seen.leftovers) == (0, [], [])
    else:  # a request fails behind its launch
        assert seen.tables > 0


@pytest.mark.skipif(not (LOOPS and MANAGER), reason="KVFIX_UPSTREAM names no excerpts of the newest loops and manager")
@pytest.mark.parametrize(("guesses", "is_right"), [((3,), True), ((0, 3), False)], ids=["one length", "two lengths"])
def test_upstreams_manager_counts_on_drafts_of_one_length(guesses: tuple[int, ...], is_right: bool) -> None:
    """With overlap it takes back what the next step, which is on its way, has been given."""
    seen = attack_alone(Way("F", guesses=guesses), True, Timeline, LOOPS, MANAGER, steps=2000)
    lost = "ValueError('History length cannot be greater than capacity')"
    assert (seen.error, seen.tables) == ("" if is_right else lost, 0)


class WaitsForNothing(Timeline):
    def wait(self, stream: int, event: int) -> None:
        """Goes on."""


def test_the_judge_sees_copies_that_wait_for_nothing() -> None:
    seen = attack_alone(Way("C"), True, WaitsForNothing)
    assert seen.error == "" and seen.wrong != []


def attack_alone(
    way: Way, fixed: bool, timeline: type[Timeline], loops: str = "", manager: str = "", steps: int = STEPS
) -> Seen:
    """loops, manager: the source of upstream's, in the place of the stand-in's."""
    seen: Seen = alone(_attack, way, fixed, timeline, loops, manager, steps)
    return seen


def _attack(
    way: Way, fixed: bool, timeline: type[Timeline], loops: str, manager: str, steps: int, sending: Any
) -> None:
    maker = Maker(timeline(Random(1)))
    with (
        way.build(),
        runtime_of(TREE, maker.order, maker.copied) as maker.module,
        newest_loops(loops) if loops else nullcontext(),
        newest_manager.newest_manager(manager) if manager else nullcontext(),
        applied(needed(way.variant) if fixed else []),
        attacked(way, "theirs", maker) as attack,
    ):
        if loops:
            let_it_rebalance(attack)
        error = ""
        try:
            attack.run(steps)
        except Exception as raised:
            error = repr(raised)
        contents, leftovers = attack.contents, [] if error else attack.leftovers()
        sending.send(Seen(len(attack.corrupt_tables), contents.wrong[:3], contents.moves, leftovers, error))
        os._exit(0)
