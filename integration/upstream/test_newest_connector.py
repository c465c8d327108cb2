"""Upstream's newest loops, V2 manager and connector manager under the attack on V2 (tests/torture/v2_attack.py)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from integration.upstream.newest_connector import (
    CONNECTED_HAPPENS,
    ConnectedAttack,
    connect,
    newest_connector,
    no_host_tier,
    source_in,
)
from integration.upstream.newest_loops import let_it_rebalance, newest_loops
from integration.upstream.newest_manager import newest_manager
from integration.upstream.test_newest_loops import FOLDER, PLACES, SOURCE
from integration.upstream.test_newest_manager import AWAITED, MANAGER, WAYS
from tests.fixes.applied import applied
from tests.fixes.faults import Fault, attributes_of, failing
from tests.torture.engines import SEED, needed
from tests.torture.test_engines import faults
from tests.torture.test_v2_attack import require_right
from tests.torture.v2_attack import Way, attacked
from tests.torture.v2_books import OurLevels

CONNECTOR = source_in(Path(FOLDER) if FOLDER else None)
pytestmark = pytest.mark.skipif(
    not (SOURCE and MANAGER and CONNECTOR),
    reason="KVFIX_UPSTREAM names no excerpts of the newest executor, V2 manager and connector manager",
)


@contextmanager
def newest(
    way: Way,
    fixes: Sequence[str] = (),
    kind: type[ConnectedAttack] = ConnectedAttack,
    levels: Callable[[int, int, int], OurLevels] = no_host_tier,
    **options: Any,
) -> Iterator[tuple[ConnectedAttack, list[str]]]:
    found: list[str] = []
    with (
        newest_loops(SOURCE),
        newest_manager(MANAGER, connected=True),
        newest_connector(CONNECTOR),
        applied(fixes) as registry,
        attacked(way, SEED, levels, kind, **options) as attack,
    ):
        assert isinstance(attack, ConnectedAttack)
        let_it_rebalance(attack)
        connect(attack)
        yield attack, found
        found += faults(registry)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_upstream_alone_reads_wrong_tables_where_a_request_fails_behind_its_launch(way: Way) -> None:
    with way.build(), newest(way) as (attack, _):
        attack.run(100)
        assert attack.corrupt_tables and attack.contents.wrong


@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_none_fails_there_and_upstream_waits_it_is_right_alone(way: Way) -> None:
    with way.build(), newest(way, failing=0) as (attack, _):
        attack.run()
        require_right(attack)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way) -> None:
    with way.build(), newest(way, fixes=needed(way.variant)) as (attack, found):
        attack.run()
        require_right(attack)
        assert CONNECTED_HAPPENS - attack.did.keys() == set()
        assert "adjust" not in attack.did, "upstream rebalances nothing where there is a connector"
    assert found == []


def test_a_connector_hears_the_same_with_all_fixes() -> None:
    heard = []
    for fixes in ([], needed("F")):
        way = Way("F", guesses=(0,))
        with way.build(), newest(way, fixes=fixes, failing=0) as (attack, _):
            attack.run(150)
            heard.append([str(each) for each in attack.side.heard])
    alone, fixed = heard
    assert alone == fixed and len(alone) > 300


def test_the_judge_sees_loads_that_outlive_their_requests() -> None:
    way = Way("F", guesses=(0,))
    with way.build(), newest(way, fixes=needed("F"), failing=0) as (attack, _):
        with mock.patch.object(type(attack.connector), "has_pending_load", return_value=False):
            attack.run()
        assert attack.corrupt_tables == [] and attack.contents.wrong


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_fault_of_ours_at_any_place_costs_time_alone(place: Fault, always: bool) -> None:
    by_layer = place.llm_args["kv_cache_config"].get("enable_swa_scratch_reuse", False)
    way = Way("F", awaited=False, by_layer=by_layer, trim=True, guesses=(0,))
    with (
        way.build(),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        newest(way, fixes=needed(way.variant)) as (attack, found),
    ):
        attack.run(100)
        require_right(attack)
    assert planted.raised > 0, f"nothing comes by {place.name}"
    assert f"Injected: {place.name}" in found
