"""The canary beside upstream's newest V2 manager, in its newest loops and behind its newest scheduler, over our V2
runtime and over upstream's own."""

import os
from contextlib import nullcontext
from random import Random
from typing import Any, NamedTuple

import pytest

from integration.upstream import newest_manager
from integration.upstream.newest_loops import let_it_rebalance, newest_loops
from integration.upstream.newest_scheduler import let_it_schedule, newest_scheduler
from integration.upstream.processes import alone
from integration.upstream.test_newest_loops import SOURCE as LOOPS
from integration.upstream.test_newest_manager import MANAGER, newest
from integration.upstream.test_newest_scheduler import SCHEDULER
from integration.upstream.test_v2_compared import TREE, needs_runtime
from integration.upstream.v2_driver import Timeline, runtime_of
from integration.upstream.v2_levels import Maker
from tests.fixes.applied import applied
from tests.torture.engines import needed
from tests.torture.test_v2_watched import SPEAKS_WITHIN, WAYS, Played
from tests.torture.v2_attack import Way, attacked
from tests.torture.v2_watched import watching

STEPS = int(os.environ.get("TORTURE_STEPS", "300"))
pytestmark = pytest.mark.skipif(
    not (LOOPS and MANAGER), reason="KVFIX_UPSTREAM names no excerpts of the newest executor and V2 manager"
)
needs_scheduler = pytest.mark.skipif(not SCHEDULER, reason="KVFIX_UPSTREAM names no excerpts of the V2 scheduler")
BLOCKS_PER_STEP = pytest.mark.parametrize("blocks_per_step", [8, 64])


class Seen(NamedTuple):
    findings: int
    first_word: int
    wrong_writes: list[int]
    compared: int
    fault: str | None
    did: dict[str, int]


def seen(played: Played, did: dict[str, int]) -> Seen:
    compared = sum(sum(report.blocks_compared.values()) for report in played.reports)
    return Seen(len(played.findings), played.first_word, played.wrong_writes, compared, played.fault, did)


def require_silent(found: Seen) -> None:
    assert (found.findings, found.fault) == (0, None) and found.compared > 5 * STEPS


def require_soon(found: Seen) -> None:
    assert found.wrong_writes and 0 < found.first_word <= found.wrong_writes[0] + SPEAKS_WITHIN


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_is_silent_where_all_is_right(way: Way) -> None:
    require_silent(over_ours(way, 8, fixed=True))


@BLOCKS_PER_STEP
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_speaks_soon_after_the_first_wrong_write_into_a_complete_block(way: Way, blocks_per_step: int) -> None:
    require_soon(over_ours(way, blocks_per_step, fixed=False))


def over_ours(way: Way, blocks_per_step: int, *, fixed: bool) -> Seen:
    fixes = needed(way.variant) if fixed else []
    with (
        way.build(),
        newest(way, fixes, loading=0) as (attack, _),
        watching(attack, blocks_per_step) as (watched, writes),
    ):
        attack.run(STEPS)
        return seen(Played(attack, watched, writes), attack.did)


@needs_runtime
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_is_silent_over_upstreams_runtime(way: Way) -> None:
    require_silent(over_theirs(way, 8, fixed=True))


@needs_runtime
@BLOCKS_PER_STEP
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_speaks_soon_over_upstreams_runtime(way: Way, blocks_per_step: int) -> None:
    require_soon(over_theirs(way, blocks_per_step, fixed=False))


@needs_runtime
@needs_scheduler
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_is_silent_behind_upstreams_scheduler(way: Way) -> None:
    found = over_theirs(way, 8, fixed=True, scheduled=True)
    require_silent(found)
    assert found.did["suspend for room"] and found.did["reuse"]


@needs_runtime
@needs_scheduler
@BLOCKS_PER_STEP
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_speaks_soon_behind_upstreams_scheduler(way: Way, blocks_per_step: int) -> None:
    require_soon(over_theirs(way, blocks_per_step, fixed=False, scheduled=True))


def over_theirs(way: Way, blocks_per_step: int, *, fixed: bool, scheduled: bool = False) -> Seen:
    found: Seen = alone(_play, way, blocks_per_step, fixed, scheduled)
    return found


def _play(way: Way, blocks_per_step: int, fixed: bool, scheduled: bool, sending: Any) -> None:
    maker = Maker(Timeline(Random(1)))
    with (
        way.build(),
        runtime_of(TREE, maker.order, maker.copied) as maker.module,
        newest_loops(LOOPS),
        newest_manager.newest_manager(MANAGER),
        applied(needed(way.variant) if fixed else []),
        attacked(way, "theirs", maker, loading=0) as attack,
        newest_scheduler(SCHEDULER) if scheduled else nullcontext() as scheduler,
        watching(attack, blocks_per_step) as (watched, writes),
    ):
        let_it_rebalance(attack)
        if scheduled:
            let_it_schedule(attack, scheduler)
        attack.run(STEPS)
        sending.send(seen(Played(attack, watched, writes), attack.did))
        os._exit(0)
