"""Upstream's newest loops over its newest V2 manager, under the attack on V2 (tests/torture/v2_attack.py)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.upstream.newest_loops import let_it_rebalance, newest_loops
from integration.upstream.newest_manager import newest_manager, source_in
from integration.upstream.test_newest_loops import FOLDER, PLACES, SOURCE
from tests.fixes.applied import applied
from tests.fixes.faults import Fault, attributes_of, failing
from tests.torture.engines import SEED, needed
from tests.torture.test_engines import faults
from tests.torture.test_v2_attack import require_right
from tests.torture.v2_attack import Attack, Way, attacked

MANAGER = source_in(Path(FOLDER) if FOLDER else None)
pytestmark = pytest.mark.skipif(
    not (SOURCE and MANAGER), reason="KVFIX_UPSTREAM names no excerpts of the newest executor and V2 manager"
)
# Nothing is drafted: the manager counts on drafts of one length.
AWAITED = [Way("F", overlap=overlap, trim=trim, guesses=(0,)) for overlap in (True, False) for trim in (False, True)]
WAYS = [*AWAITED, Way("F", awaited=False, guesses=(0,)), Way("F", awaited=False, trim=True, guesses=(0,))]


@contextmanager
def newest(way: Way, fixes: Sequence[str] = (), **options: Any) -> Iterator[tuple[Attack, list[str]]]:
    found: list[str] = []
    with (
        newest_loops(SOURCE),
        newest_manager(MANAGER),
        applied(fixes) as registry,
        attacked(way, SEED, **options) as attack,
    ):
        let_it_rebalance(attack)
        yield attack, found
        found += faults(registry)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_upstream_alone_reads_wrong_tables_where_a_request_fails_behind_its_launch(way: Way) -> None:
    """Its row is rewritten when its cache is closed. Between a launch and the wait for it upstream ends requests whose
    grammar fails."""
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
    with way.build(), newest(way, needed(way.variant)) as (attack, found):
        attack.run()
        require_right(attack)
    assert found == []


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_fault_of_ours_at_any_place_costs_time_alone(place: Fault, always: bool) -> None:
    by_layer = place.llm_args["kv_cache_config"].get("enable_swa_scratch_reuse", False)
    way = Way("F", awaited=False, by_layer=by_layer, trim=True, guesses=(0,))
    with (
        way.build(),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        newest(way, needed(way.variant)) as (attack, found),
    ):
        attack.run(100)
        require_right(attack)
    assert planted.raised > 0, f"nothing comes by {place.name}"
    assert f"Injected: {place.name}" in found
