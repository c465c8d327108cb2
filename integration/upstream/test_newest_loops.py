"""Upstream's newest loops under the attack on V2 (tests/torture/v2_attack.py)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.upstream.newest_loops import let_it_rebalance, newest_loops, source_in
from tests.fixes.applied import applied
from tests.fixes.faults import Fault, attributes_of, failing
from tests.fixes.proofs import places_of
from tests.torture.engines import SEED, needed
from tests.torture.test_engines import faults
from tests.torture.test_v2_attack import STAGING, require_right
from tests.torture.v2_attack import HAPPENS, Attack, Way, attacked

FOLDER = os.environ.get("KVFIX_UPSTREAM")
SOURCE = source_in(Path(FOLDER) if FOLDER else None)
pytestmark = pytest.mark.skipif(not SOURCE, reason="KVFIX_UPSTREAM names no excerpts of the newest executor")
RACY = [
    *(Way("F", awaited=False, by_layer=by_layer) for by_layer in (False, True)),
    Way("F", awaited=False, trim=True),
    Way("F", draft=True),
    Way("F", draft=True, trim=True),
]
PLACES = [place for place in places_of(STAGING) if place.variant in {"D", "F"}]  # D's are in F, too
AWAITED = [Way("F", overlap=overlap, trim=trim) for overlap in (True, False) for trim in (False, True)]


@contextmanager
def newest(way: Way, **options: Any) -> Iterator[Attack]:
    with newest_loops(SOURCE), attacked(way, SEED, **options) as attack:
        let_it_rebalance(attack)
        yield attack


@pytest.mark.parametrize("way", RACY, ids=str)
def test_upstream_alone_reads_wrong_tables(way: Way) -> None:
    with way.build(), newest(way) as attack:
        attack.run(60)
        assert attack.corrupt_tables


@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_upstream_waits_and_none_fails_it_is_right_alone(way: Way) -> None:
    with way.build(), newest(way, failing=0) as attack:
        attack.run()
        require_right(attack)


@pytest.mark.parametrize("way", [*RACY, *AWAITED], ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way) -> None:
    with way.build(), newest_loops(SOURCE), applied(needed(way.variant)) as registry, attacked(way, SEED) as attack:
        let_it_rebalance(attack)
        attack.run()
        require_right(attack)
        assert faults(registry) == []
        assert HAPPENS - attack.did.keys() == set()


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_fault_of_ours_at_any_place_costs_time_alone(place: Fault, always: bool) -> None:
    by_layer = place.llm_args["kv_cache_config"].get("enable_swa_scratch_reuse", False)
    way = Way("F", draft=True, by_layer=by_layer, trim=True)
    with (
        way.build(),
        newest_loops(SOURCE),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        applied(needed(way.variant)) as registry,
        attacked(way, SEED) as attack,
    ):
        let_it_rebalance(attack)
        attack.run(100)
        require_right(attack)
        assert planted.raised > 0, f"nothing comes by {place.name}"
        assert f"Injected: {place.name}" in faults(registry)
